"""A deployment on this machine, as docs/deployment/ describes it; each host is a folder and an environment."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from pathlib import Path

from flower_vfl.rng import simulation_secret
from flower_vfl.simulations.flower_engine import free_port, tool, write_deployment
from flower_vfl.simulations.keys import write_keys

NAME = "trial"
ROOT = Path(__file__).parents[2]


class Hosts:
    """A SuperLink, SuperNodes with TLS and authentication, and for isolation mode "process" their SuperExecs.

    Every process is ended by its own id when the context is left.
    """

    def __init__(self, folder: Path, label_data: Path, parties: dict[str, Path], *, isolation: str = "subprocess"):
        self.folder, self.parties, self.isolation = folder, parties, isolation
        self._label_data = label_data
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._begun: dict[str, int] = {}
        self.keys = folder / "keys"
        self.port = self.dialled = free_port()

    def __enter__(self):
        write_keys(self.keys, ["127.0.0.1"], list(self.parties), days=2)
        return self

    def __exit__(self, *_):
        for process in reversed(self._processes.values()):
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()

    def environment(self, host: str, **more: str) -> dict[str, str]:
        """Return the environment of a host, which shares no folder with another host."""
        own = {
            "FLWR_HOME": str(self.folder / host / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3",  # at 0.1 s three hosts that wait take a fifth of a core
            "FLOWER_VFL_STATE": str(self.folder / host / "state"),
        }
        (self.folder / host / "flwr").mkdir(parents=True, exist_ok=True)
        return {**os.environ, **own, **more}

    def repeat_simulation(self, seed: int) -> None:
        """Give each host the secret that a simulation of this seed would have."""
        for host, party in [("superlink", "label"), *((party, party) for party in self.parties)]:
            (self.keys / host / "run.secret").write_bytes(simulation_secret(seed, party))

    def _secret(self, host: str) -> dict[str, str]:
        path = self.keys / host / "run.secret"
        return {"FLOWER_VFL_SECRET_FILE": str(path)} if path.exists() else {}

    def start(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        log = (self.folder / f"{name}.log").open("ab")
        with log:
            self._begun[name] = log.tell()
            self._processes[name] = subprocess.Popen(
                [tool(command[0]), *command[1:]], env=environment, stdout=log, stderr=log, cwd=self.folder
            )

    def process(self, name: str) -> subprocess.Popen[bytes]:
        return self._processes[name]

    def start_again(self, host: str, seconds: float = 120.0) -> None:
        """Start a SuperNode that died; the SuperLink refuses it for as long as it believes the old one alive."""
        deadline = time.monotonic() + seconds
        self._processes.pop(host).wait()
        self.start_node(host)
        while "SuperNode ID" not in self._logged(host):
            assert time.monotonic() < deadline, self.log(host)[-3000:]
            if self._processes[host].poll() is not None:
                self.start_node(host)
            time.sleep(5.0)  # each try costs seconds of a core, and the SuperLink waits a minute

    def stop(self, name: str) -> None:
        process = self._processes.pop(name)
        process.terminate()
        process.wait(20)

    def exit_code(self, name: str, seconds: float = 60.0) -> int:
        """Wait until a process has ended by itself; return its exit code."""
        return self._processes.pop(name).wait(seconds)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _logged(self, name: str) -> str:
        """Return the log of a host since its last start."""
        return (self.folder / f"{name}.log").read_bytes()[self._begun.get(name, 0) :].decode(errors="replace")

    def wait_for(self, name: str, text: str, seconds: float = 60.0) -> None:
        """Wait until a host has logged a text since it was last started."""
        deadline = time.monotonic() + seconds
        while text not in self._logged(name):
            if time.monotonic() > deadline or (name in self._processes and self._processes[name].poll() is not None):
                raise AssertionError(f"{name} did not log {text!r}:\n{self.log(name)[-3000:]}")
            time.sleep(0.2)

    def start_superlink(self) -> None:
        keys = self.keys / "superlink"
        environment = self.environment("superlink", FLOWER_VFL_DATA=str(self._label_data), **self._secret("superlink"))
        home = Path(environment["FLWR_HOME"])
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{keys / "ca.crt"}"\n'
        )
        command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.port), "--enable-supernode-auth"]
        command += ["--ssl-ca-certfile", str(keys / "ca.crt"), "--ssl-certfile", str(keys / "server.crt")]
        command += ["--ssl-keyfile", str(keys / "server.key"), "--isolation", self.isolation]
        if self.isolation == "process":
            command += ["--superexec-auth-secret-file", str(keys / "superexec.secret")]
        self.start("superlink", command, environment)
        self.wait_for("superlink", "startup complete")
        if self.isolation == "process":
            self._start_superexec("superlink", self.port, environment, tls=True)

    def start_proxy(self, nginx: str) -> None:
        """Start the proxy of docs/deployment/ in front of the SuperLink, at a port of its own."""
        self.dialled, keys = free_port(), self.keys / "superlink"
        text = (ROOT / "docs" / "deployment" / "nginx.conf").read_text()
        for documented, here in {
            "192.0.2.10:9092": f"127.0.0.1:{self.dialled}",
            "127.0.0.1:9091": f"127.0.0.1:{self.port}",
            "/etc/flower-vfl/": f"{keys}/",
            "/run/flower-vfl/": f"{self.folder}/",
        }.items():
            assert documented in text
            text = text.replace(documented, here)
        (self.folder / "nginx.conf").write_text(text)
        command = [nginx, "-e", "stderr", "-c", str(self.folder / "nginx.conf"), "-g", "daemon off;"]
        self.start("proxy", command, self.environment("superlink"))

    def _start_superexec(self, host: str, port: int, environment: dict[str, str], *, tls: bool) -> None:
        keys = self.keys / host
        command = ["flower-superexec", "--runtime-api-address", f"127.0.0.1:{port}"]
        command += ["--root-certificates", str(keys / "ca.crt")] if tls else ["--insecure"]
        command += ["--superexec-auth-secret-file", str(keys / "superexec.secret")]
        self.start(f"{host}-superexec", command, environment)

    def register(self, party: str, name: str | None = None) -> None:
        done = self.flwr(
            "supernode", "register", str(self.keys / "superlink" / f"{party}.pub"), NAME, "--name", name or party
        )
        assert done.returncode == 0, done.stdout

    def start_node(
        self,
        host: str,
        *,
        party: str = "",
        data: Path | None = None,
        name: str = "",
        authority: Path | None = None,
        config: str = "",
        more: dict[str, str] | None = None,
    ) -> None:
        """Start the SuperNode of a host, on request with another party, data, authority or node configuration.

        `name` is the name of the process, and `more` adds variables to its environment.
        """
        keys, port = self.keys / host, free_port()
        environment = self.environment(host, **self._secret(host), **(more or {}))
        if not config:
            config = f"party='{party or host}' data-path='{data or self.parties[party or host]}' train-epochs=1000 "
            config += f"out='{self.folder / host / 'out'}'"
        command = ["flower-supernode", "--superlink", f"127.0.0.1:{self.dialled}", "--port", str(port)]
        command += [
            "--root-certificates",
            str(authority or keys / "ca.crt"),
            "--auth-supernode-private-key",
            str(keys / f"{host}.key"),
        ]
        command += ["--node-config", config, "--isolation", self.isolation]
        if self.isolation == "process":
            command += ["--superexec-auth-secret-file", str(keys / "superexec.secret")]
        self.start(name or host, command, environment)
        if self.isolation == "process":
            self.wait_for(host, "startup complete")
            self._start_superexec(host, port, environment, tls=False)

    def start_later(self, host: str, seconds: float) -> None:
        """Start a SuperNode after some seconds, without waiting for it."""
        self._timer = threading.Timer(seconds, self.start_node, (host,))
        self._timer.start()

    def restart(self, host: str, **changed: object) -> None:
        """Stop a SuperNode and start it again, with changed arguments of `start_node`."""
        self.stop(host)
        self.start_node(host, **changed)

    def flwr(self, *arguments: str, timeout: float = 240.0) -> subprocess.CompletedProcess[str]:
        environment = self.environment("superlink", COLUMNS="300")
        return subprocess.run(
            [tool("flwr"), *arguments],
            env=environment,
            cwd=self.folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            check=False,
        )

    def run(self, config, name: str = "run", timeout: float = 240.0) -> subprocess.CompletedProcess[str]:
        """Write the Flower App of a configuration and run it, as on the host of the label party."""
        app = self.folder / f"app-{name}"
        if not app.exists():
            write_deployment(app, config, self.folder / name)
        return self.flwr("run", str(app), NAME, "--stream", timeout=timeout)

    def all_logs(self) -> str:
        return "\n".join(
            f"== {path.name}\n{path.read_text(errors='replace')[-4000:]}" for path in self.folder.glob("*.log")
        )


@contextlib.contextmanager
def deployed(folder, label_data, parties, *, isolation="subprocess", seed=None):
    """Yield the hosts of a deployment with registered and started nodes."""
    with Hosts(folder, label_data, parties, isolation=isolation) as hosts:
        if seed is not None:
            hosts.repeat_simulation(seed)
        hosts.start_superlink()
        for party in parties:
            hosts.register(party)
            hosts.start_node(party)
        yield hosts
