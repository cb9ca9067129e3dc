"""Compose files and Dockerfile of docs/deployment/containers/, checked without Docker."""

from __future__ import annotations

import fnmatch
import re
import subprocess
from importlib.metadata import version

import pytest
import yaml

from tests.deployment.containers import FOLDER, ROOT, compose

HOSTS = {"label": {"ADDRESS": "192.0.2.10"}, "feature": {"PARTY": "a", "SUPERLINK": "label.example:9092"}}


def services():
    return [
        pytest.param(service, id=f"{host}-{name}")
        for host, variables in HOSTS.items()
        for name, service in compose(host, variables)["services"].items()
    ]


@pytest.mark.parametrize("service", services())
def test_every_service_is_pinned_unprivileged_and_read_only(service):
    assert service["user"] == "49999:49999"
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "devices", "pid", "ipc", "env_file"} & set(service)
    image, _, tag = service["image"].partition(":")
    assert tag == (f"{version('flwr')}-py3.11-ubuntu24.04" if image.startswith("flwr/") else "0.1.0")
    if service.get("entrypoint") != ["sleep", "infinity"] and "profiles" not in service:
        assert service["healthcheck"]["test"][0] == "CMD"
    for volume in service.get("volumes", []):
        assert (volume["type"], volume["bind"]) == ("bind", {"create_host_path": False})
    for value in service.get("environment", {}).values():
        assert not re.search("KEY|SECRET", str(value))


@pytest.mark.parametrize("host", HOSTS)
def test_a_variable_that_must_be_given_is_asked_for(host):
    for missing in HOSTS[host]:
        with pytest.raises(KeyError, match=missing):
            compose(host, {name: value for name, value in HOSTS[host].items() if name != missing})


def test_a_build_context_has_the_wheel_and_the_constraints_only():
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "*"
    assert all(line.startswith("!") for line in lines[1:])
    patterns = [line[1:] for line in lines[1:]]
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    untracked = ["runs/x/checkpoints/a", ".git/config", "keys/server.key", "dist/server.key", "docs/x.whl"]
    seen = [path for path in [*tracked, *untracked] if any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)]
    assert seen == ["constraints.txt"]
    assert fnmatch.fnmatchcase("dist/flower_vfl-0.1.0-py3-none-any.whl", patterns[1])


def test_the_dockerfile_copies_nothing_else_and_ends_as_the_unprivileged_user():
    text = (FOLDER / "Dockerfile").read_text()
    assert not re.search(r"^\s*(COPY|ADD)\b", text, re.MULTILINE)
    sources = re.findall(r"type=bind,source=([\w./]+)", text)
    assert sources == ["constraints.txt", "dist"]
    assert f"flwr/superexec:{version('flwr')}-" in text
    for stage in text.split("\nFROM ")[1:]:
        assert re.findall(r"^USER (\S+)$", stage, re.MULTILINE)[-1] == "49999:49999"


def test_the_files_are_yaml_without_doubled_keys():
    class Strict(yaml.SafeLoader):
        """Loader that refuses repeated keys, which YAML forbids and PyYAML accepts."""

    def mapping(loader, node):
        keys = [key.value for key, _ in node.value if key.value != "<<"]
        assert len(keys) == len(set(keys)), keys
        loader.flatten_mapping(node)
        return loader.construct_mapping(node, deep=True)

    Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    for host in HOSTS:
        yaml.load((FOLDER / host / "compose.yaml").read_text(), Strict)
