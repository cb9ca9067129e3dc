"""(n) From `flwr run` to open sessions, on a deployment that is up: SuperLink, two SuperNodes, TLS and authentication.

All on one machine, over loopback. Each run is a new one with the ready-made ClientApp, the digits data set and the
census preset's network; the clock stops when the label party begins to train, after every party has opened its data,
built its model and been admitted. Target: 10 s, the slowest of all runs but the first, which is a warm-up.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from harness import arguments, report

from flower_vfl.config import Config, build_config, load_config
from flower_vfl.data.sources.catalog import prepare
from flower_vfl.data.store.parts import write_part
from flower_vfl.simulations.flower_engine import free_port, tool, write_deployment
from flower_vfl.simulations.keys import write_keys

TARGET = 10.0

SERVER = """
import os
import time
from pathlib import Path

from flower_vfl.apps import make_server_app
from flower_vfl.strategies import Observer


class Begun(Observer):
    def on_start(self, steps, epochs, parties):
        Path(os.environ["BEGUN"]).write_text(str(time.time()))


app = make_server_app(observers=(Begun(),))
"""


def settings() -> Config:
    """Return a short run of the census preset's network."""
    values = load_config("census").model_dump()
    values |= {"data": {"name": "digits"}}
    values["training"] |= {"epochs": 1, "batch_size": 256}
    values["attack"] |= {"names": [], "informed": 0, "snapshots": []}
    values["transport"] |= {"kind": "stream"}
    return build_config(values)


def flwr(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """Run Flower's command line to its end."""
    return subprocess.run([tool("flwr"), *words], env=environment, capture_output=True, text=True, check=False)


@contextlib.contextmanager
def deployment(root: Path, data: str) -> Iterator[dict[str, str]]:
    """Run a SuperLink and a SuperNode a party, end them by their ids; yield the environment of the label party."""
    dataset = prepare(data, out=root / "whole")
    parties = [party for party in dataset.parties if party != dataset.label_party]
    for party in (dataset.label_party, *parties):
        write_part(root / "whole", party, root / party)
    keys, port = root / "keys", free_port()
    write_keys(keys, ["127.0.0.1"], parties, days=1)
    common = {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    }
    common |= {"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "FLOWER_VFL_DATA": str(root / dataset.label_party)}
    environment = {**os.environ, **common, "FLWR_HOME": str(root / "home"), "BEGUN": str(root / "begun")}
    authority = keys / "superlink" / "ca.crt"
    (root / "home").mkdir()
    place = f'address = "127.0.0.1:{port}"\nroot-certificates = "{authority}"'
    (root / "home" / "config.toml").write_text(f'[superlink]\ndefault = "up"\n[superlink.up]\n{place}\n')
    with contextlib.ExitStack() as stack, (root / "log").open("wb") as log:

        def start(command: list[str], home: Path) -> None:
            here = {**environment, "FLWR_HOME": str(home), "FLOWER_VFL_STATE": str(home / "state")}
            process = subprocess.Popen(command, env=here, stdout=log, stderr=log)
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)

        link = [tool("flower-superlink"), "--host", "127.0.0.1", "--port", str(port), "--enable-supernode-auth"]
        link += ["--ssl-ca-certfile", str(authority), "--ssl-certfile", str(keys / "superlink" / "server.crt")]
        start([*link, "--ssl-keyfile", str(keys / "superlink" / "server.key")], root / "home")
        for party in parties:
            register = ["supernode", "register", str(keys / "superlink" / f"{party}.pub"), "up", "--name", party]
            while flwr(environment, *register).returncode:
                time.sleep(1.0)
            node = [tool("flower-supernode"), "--superlink", f"127.0.0.1:{port}", "--port", str(free_port())]
            node += ["--root-certificates", str(authority)]
            node += ["--auth-supernode-private-key", str(keys / party / f"{party}.key")]
            start(
                [*node, "--node-config", f"party='{party}' data-path='{root / party}' train-epochs=1000"],
                root / f"{party}-home",
            )
        yield environment


def main() -> None:
    """Measure and report."""
    quick = arguments(__doc__).quick
    seconds = []
    with tempfile.TemporaryDirectory(prefix="flower-vfl-benchmark-") as temporary:
        root = Path(temporary)
        with deployment(root, "digits") as environment:
            write_deployment(root / "app", settings(), None)
            (root / "app" / "server_app.py").write_text(SERVER)
            for _ in range(1 if quick else 8):  # the first run waits for the SuperNodes and is not counted
                (root / "begun").unlink(missing_ok=True)
                started = time.time()
                done = flwr(environment, "run", str(root / "app"), "up", "--stream")
                if not (root / "begun").is_file():
                    raise SystemExit(f"the run did not begin:\n{done.stdout}{(root / 'log').read_text()[-3000:]}")
                seconds.append(round(float((root / "begun").read_text()) - started, 2))
    counted = seconds if quick else seconds[1:]
    report(
        "session_up",
        target=f"<= {TARGET:g} s",
        met=max(counted) <= TARGET,
        quick=quick,
        seconds=counted,
        first=seconds[0],
    )


if __name__ == "__main__":
    main()
