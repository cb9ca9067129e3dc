"""The services of docs/deployment/containers/ as processes: one network, a read-only root, one user."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import yaml

from flower_vfl.simulations.keys import write_keys

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "deployment" / "containers"
USER = 49999
_VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?::(?P<kind>[-?])(?P<word>[^}]*))?\}")
_SYSTEM = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib64",
    "/etc/ssl",
    "/etc/ld.so.cache",
    "/etc/passwd",
    "/etc/nsswitch.conf",
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")


def compose(name: str, variables: dict[str, str]) -> dict:
    """Read a compose file and substitute its variables, as `docker compose config` does."""

    def value(match: re.Match[str]) -> str:
        name, kind, word = match["name"], match["kind"], match["word"]
        if variables.get(name):
            return variables[name]
        if kind == "?":
            raise KeyError(f"{name}: {word}")
        return word or ""

    def interpolated(part):
        if isinstance(part, dict):
            return {key: interpolated(each) for key, each in part.items()}
        if isinstance(part, list):
            return [interpolated(each) for each in part]
        return _VARIABLE.sub(value, part).replace("$$", "$") if isinstance(part, str) else part

    return interpolated(yaml.safe_load((FOLDER / name / "compose.yaml").read_text()))


def reason_to_skip() -> str:
    """Return the reason that containers cannot run here, else an empty text."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    for tool in ("ip", "nginx", "unshare", "setpriv", "chroot"):
        if shutil.which(tool, path=path) is None:
            return f"{tool} is not installed"
    probe = "mount -t tmpfs probe /mnt && ip link add switch type bridge"
    made = subprocess.run(
        ["unshare", "--mount", "--net", "sh", "-c", probe], capture_output=True, text=True, check=False
    )
    return f"namespaces are not allowed here: {made.stderr.strip()}" if made.returncode else ""


class Pod:
    """One host: the services of one compose file in one network namespace."""

    def __init__(self, folder: Path, network: str, name: str, variables: dict[str, str]):
        self.folder, self.network = folder, network
        places = {key: folder / key.lower() for key in ("KEYS", "DATA", "STATE")}
        self.keys, self.data, self.state = places.values()
        self.work = self.state / "work"
        self.compose = compose(name, {**{key: str(path) for key, path in places.items()}, **variables})
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def own(self) -> None:
        """Give the folders to the user of the services, as the page says."""
        for path in (self.keys, self.data, self.state, self.work):
            path.mkdir(parents=True, exist_ok=True)
        for service in ("superlink", "serverapp", "supernode", "clientapp"):
            (self.state / service).mkdir(exist_ok=True)
        subprocess.run(["chown", "-R", f"{USER}:{USER}", str(self.folder)], check=True)
        subprocess.run(["chmod", "-R", "go-rwx", str(self.keys), str(self.data), str(self.state)], check=True)

    def start(self, service: str) -> None:
        with (self.folder / f"{service}.log").open("ab") as log:
            self._processes[service] = subprocess.Popen(self._command(service), stdout=log, stderr=log)

    def run(self, service: str, *command: str, timeout: float = 240.0) -> subprocess.CompletedProcess[str]:
        """Run a command of the service, as `docker compose run` does."""
        arguments = self._command(service, list(command))
        return self._completed(arguments, timeout)

    def execute(self, service: str, *command: str, timeout: float = 30.0) -> subprocess.CompletedProcess[str]:
        """Run a command in a container like the service's, without its entry point, as `docker exec` does."""
        return self._completed(self._command(service, list(command), entry=False), timeout)

    @staticmethod
    def _completed(arguments: list[str], timeout: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(arguments, capture_output=True, text=True, timeout=timeout, check=False)

    def wait_healthy(self, service: str, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        probe = self.compose["services"][service]["healthcheck"]["test"]
        assert probe[0] == "CMD"
        while (done := self.execute(service, *probe[1:])).returncode:
            if self._processes[service].poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{service}: {done.stderr[-500:]}\n{self.log(service)[-3000:]}")
            time.sleep(1.0)

    def log(self, service: str) -> str:
        return (self.folder / f"{service}.log").read_text(errors="replace")

    def stop(self) -> None:
        for process in self._processes.values():
            process.kill()  # `unshare` ignores SIGTERM; with it all of the container ends
            process.wait()

    def _command(self, name: str, instead: list[str] | None = None, *, entry: bool = True) -> list[str]:
        """Return the command of a service, or of `instead` in its container, with only what its compose file gives."""
        service = self.compose["services"][name]
        assert (service["network_mode"], service["read_only"], service["cap_drop"]) == ("service:host", True, ["ALL"])
        root = f"{self.folder}/root"
        lines = ["set -e", f"mkdir -p {root}", f"mount -t tmpfs -o mode=0755 root {root}"]
        for source, target, read_only in self._mounts(service):
            make = "mkdir -p" if source.is_dir() else f"mkdir -p {root}{target.parent} && touch"
            lines += [f"{make} {root}{target}", f"mount --bind {shlex.quote(str(source))} {root}{target}"]
            lines += [f"mount -o remount,bind,ro {root}{target}"] * read_only
        for text in ["/dev/shm:mode=1777", *service["tmpfs"]]:
            target, _, options = text.partition(":")
            lines += [
                f"mkdir -p {root}{target}",
                f"mount -t tmpfs -o nosuid,nodev,noexec,{options} tmpfs {root}{target}",
            ]
        lines += [f"mkdir -p {root}/proc", f"mount -t proc proc {root}/proc", f"mount -o remount,ro {root}"]
        environment = {"PATH": f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/bin", "LANG": "C.UTF-8"}
        environment |= {"PYTHONPATH": str(ROOT / "src"), **service.get("environment", {})}
        first = service.get("entrypoint", proxy_entrypoint() if name == "proxy" else []) if entry else []
        command = ["env", "-i", f"--chdir={service.get('working_dir', '/')}"]
        command += [f"{key}={value}" for key, value in environment.items()]
        command += [*first, *(instead or service.get("command", []))]
        user, group = service["user"].split(":")
        drop = [
            "setpriv",
            "--reuid",
            user,
            "--regid",
            group,
            "--clear-groups",
            "--bounding-set=-all",
            "--inh-caps=-all",
        ]
        drop += ["--pdeathsig", "KILL"]  # a change of user removes the signal of `unshare --kill-child`
        lines += [f"exec chroot {root} {shlex.join([*drop, '--no-new-privs', *command])}"]
        unshared = [
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--ipc",
            "--uts",
            "sh",
            "-c",
            "\n".join(lines),
        ]
        return ["ip", "netns", "exec", self.network, *unshared]

    def _mounts(self, service: dict) -> list[tuple[Path, Path, bool]]:
        """Return source, target and "read only" of each mount: those in place of the image, then the service's own."""
        image = {*_SYSTEM, str(ROOT), sys.prefix, sys.base_prefix}
        mounts = [(Path(path).resolve(), Path(path), True) for path in sorted(image) if Path(path).exists()]
        mounts += [(Path(path), Path(path), False) for path in _DEVICES]
        for kind in ("secrets", "configs"):
            for reference in service.get(kind, []):
                definition = self.compose[kind][reference["source"]]
                file = Path(definition.get("file", self.folder / reference["source"]))
                if "content" in definition:
                    file.write_text(definition["content"])
                assert file.is_file()
                mounts.append((file, Path(reference["target"]), True))
        for volume in service.get("volumes", []):
            assert Path(volume["source"]).is_dir(), volume
            mounts.append((Path(volume["source"]), Path(volume["target"]), volume.get("read_only", False)))
        return sorted(mounts, key=lambda mount: len(mount[1].parts))


def running() -> list[str]:
    """Return the processes of the services' user; the last ones end a moment after their pod."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if path.stat().st_uid == USER:
                found.append(path.name)
    return found


def proxy_entrypoint() -> list[str]:
    lines = (FOLDER / "Dockerfile").read_text().partition(" AS proxy")[2]
    return yaml.safe_load(lines.rpartition("ENTRYPOINT ")[2])


@contextlib.contextmanager
def pods(folder: Path, parties: list[str]):
    """Yield the pods of the label party and the feature parties, joined by a switch; no service is started."""
    tag = f"pod{os.getpid()}"
    names = ["label", *parties]

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True)

    made: list[Pod] = []
    try:
        ip("netns", "add", f"{tag}-switch")
        ip("-n", f"{tag}-switch", "link", "add", "switch", "type", "bridge")
        ip("-n", f"{tag}-switch", "link", "set", "switch", "up")
        for number, name in enumerate(names, 1):
            network = f"{tag}-{name}"
            ip("netns", "add", network)
            ip("-n", network, "link", "set", "lo", "up")
            ip(
                "link",
                "add",
                f"pod{number}",
                "netns",
                f"{tag}-switch",
                "type",
                "veth",
                "peer",
                "eth0",
                "netns",
                network,
            )
            ip("-n", f"{tag}-switch", "link", "set", f"pod{number}", "master", "switch", "up")
            ip("-n", network, "address", "add", f"10.213.78.{number}/24", "dev", "eth0")
            ip("-n", network, "link", "set", "eth0", "up")
            variables = {
                "ADDRESS": "10.213.78.1",
                "SUPERLINK": "10.213.78.1:9092",
                "PARTY": name,
                "NODE_CONFIG": "train-epochs=1",
            }
            made.append(Pod(folder / name, network, "label" if name == "label" else "feature", variables))
        write_keys(folder / "keys", ["10.213.78.1"], parties, days=2)
        for pod, name in zip(made, ("superlink", *parties), strict=True):
            shutil.copytree(folder / "keys" / name, pod.keys)
            if (pod.keys / f"{name}.key").exists():
                (pod.keys / f"{name}.key").rename(pod.keys / "party.key")
        proxy = (ROOT / "docs" / "deployment" / "nginx.conf").read_text()
        (made[0].keys / "nginx.conf").write_text(proxy.replace("192.0.2.10", "0.0.0.0"))
        yield made
    finally:
        for pod in made:
            pod.stop()
        for name in ("switch", *names):
            subprocess.run(["ip", "netns", "del", f"{tag}-{name}"], check=False, capture_output=True)
