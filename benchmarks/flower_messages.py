"""A round trip of a session against a round trip of plain Flower messages, same payload, in one and the same run.

Without sessions, a user would send one Flower message a mini-batch, by `grid.send_and_receive`. Both are timed by the
same ServerApp with the same two nodes, 512 KiB each way, first in Flower's simulation runtime, then in a deployment
(SuperLink and two SuperNodes on loopback). Target: sessions more than 100 times faster in the simulation, more than
1,000 times in the deployment.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli_w
from harness import arguments, report

from flower_vfl.simulations.flower_engine import free_port, super_link, tool

VALUES = 131_072  # float32: 512 KiB
PARTIES = 2

ECHO = '''
import torch
from flower_vfl.protocol.frame import Frame, Kind

VALUES = {values}
LIMIT = 4 * VALUES + 2**17


class Echo:
    """Sends back what it gets."""

    def __init__(self, name):
        self.name, self.finished, self.frame_limit = name, False, LIMIT

    def hello(self):
        return Frame(Kind.HELLO, fields={{"party": self.name}})

    def handle(self, frame):
        if frame.kind is Kind.FINISH:
            self.finished = True
            return Frame(Kind.REPORT)
        return Frame(Kind.EMBEDDING, frame.step, tensors={{"embedding": frame.tensors["gradient"]}})
'''

CLIENT = """
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from echo import Echo
from flower_vfl.transport.dialling import attend
from flower_vfl.transport.sessions import FINISHED, OFFER, REPLY

app = ClientApp()


@app.train()
def train(message, context):
    offer = message.content.config_records.get(OFFER)
    if offer is None:
        return Message(message.content, reply_to=message)
    attend(offer, str(offer["session"]), Echo("p" + str(context.node_config["partition-id"])), timeout=30)
    return Message(RecordDict({REPLY: ConfigRecord({"status": FINISHED})}), reply_to=message)
"""

SERVER = """
import json
import time

import torch
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import ServerApp

from echo import LIMIT, VALUES
from flower_vfl.config.schema import TransportConfig
from flower_vfl.protocol.frame import Frame, Kind
from flower_vfl.transport.sessions import Sessions

app = ServerApp()


def nodes(grid):
    while len(found := list(grid.get_node_ids())) < 2:
        time.sleep(0.1)
    return found


def messages(grid, rounds):
    payload = RecordDict({"arrays": ArrayRecord({"x": torch.zeros(VALUES)})})
    seconds = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        replies = list(grid.send_and_receive([Message(payload, node, "train") for node in nodes(grid)]))
        seconds.append(time.perf_counter() - started)
        assert len(replies) == 2 and not any(reply.has_error() for reply in replies)
    return seconds[1:]


def session(grid, rounds):
    def settle(link):
        link.frame_limit = LIMIT

    config = TransportConfig(kind="stream", connect_timeout=60)
    gradient, seconds = torch.zeros(VALUES), []
    with Sessions(grid, ["p0", "p1"], config, simulation=True) as sessions:
        links = sessions.open(settle)
        for step in range(rounds + 20):
            started = time.perf_counter()
            for link in links.values():
                link.send(Frame(Kind.STEP, step, {"gradient_of": -1}, {"gradient": gradient}))
            for link in links.values():
                assert link.receive(60).tensors["embedding"].shape == (VALUES,)
            seconds.append(time.perf_counter() - started)
        sessions.finish(60)
    return seconds[20:]


@app.main()
def main(grid, context):
    nodes(grid)
    config = context.run_config
    found = {"messages": messages(grid, config["messages"]), "session": session(grid, config["rounds"])}
    with open(config["result"], "w", encoding="utf8") as file:
        json.dump(found, file)
"""


def write_app(folder: Path, result: Path, rounds: int, messages: int) -> None:
    """Write the Flower App that times both."""
    folder.mkdir()
    for name, text in {"echo": ECHO.format(values=VALUES), "client_app": CLIENT, "server_app": SERVER}.items():
        (folder / f"{name}.py").write_text(text, encoding="utf8")
    app = {
        "publisher": "flower-vfl",
        "components": {"serverapp": "server_app:app", "clientapp": "client_app:app"},
        "config": {"result": str(result), "rounds": rounds, "messages": messages},
    }
    project = {"name": "echo", "version": "0", "description": "x", "license": "Apache-2.0", "dependencies": []}
    (folder / "pyproject.toml").write_text(tomli_w.dumps({"project": project, "tool": {"flwr": {"app": app}}}))


def flwr_run(app: Path, environment: dict[str, str], *more: str) -> None:
    """Start the run and wait for its end."""
    command = [tool("flwr"), "run", str(app), "--stream", *more]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)


@contextlib.contextmanager
def deployment(home: Path, environment: dict[str, str]) -> Iterator[None]:
    """Run a SuperLink and two SuperNodes on loopback, without TLS, and end them by their ids."""
    home.mkdir()
    port = free_port()
    config = f'[superlink]\ndefault = "local"\n[superlink.local]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (home / "config.toml").write_text(config, encoding="utf8")
    link = [tool("flower-superlink"), "--insecure", "--host", "127.0.0.1", "--port", str(port)]
    link += ["--control-api-address", f"127.0.0.1:{free_port()}", "--fleet-api-address", f"127.0.0.1:{free_port()}"]
    with contextlib.ExitStack() as stack, (home / "log").open("wb") as log:

        def start(command: list[str]) -> None:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)

        start(link)
        time.sleep(5.0)
        for index in range(PARTIES):
            node = [tool("flower-supernode"), "--insecure", "--superlink", f"127.0.0.1:{port}"]
            node += ["--port", str(free_port()), "--node-config", f"partition-id={index}"]
            start(node)
        time.sleep(3.0)
        yield


def measure(kind: str, quick: bool) -> dict[str, Any]:
    """Run both in one runtime and return medians in milliseconds and their ratio."""
    with tempfile.TemporaryDirectory(prefix="flower-vfl-benchmark-") as temporary:
        home, app, result = (Path(temporary) / name for name in ("home", "app", "result.json"))
        simulated = kind == "simulation"
        write_app(app, result, 50 if quick else 1000, 2 if quick else (50 if simulated else 10))
        environment = {
            **os.environ,
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        }
        if simulated:
            workers = f"num-supernodes={PARTIES} client-resources-num-cpus=1 init-args-num-cpus={PARTIES}"
            with super_link(home, environment):
                flwr_run(app, environment, "--federation-config", workers)
        else:
            with deployment(home, environment):
                flwr_run(app, environment)
        if not result.is_file():
            raise SystemExit(f"the {kind} left no result")
        seconds = json.loads(result.read_text(encoding="utf8"))
    medians = {name: 1000.0 * statistics.median(values) for name, values in seconds.items()}
    return {
        "messages_ms": round(medians["messages"], 2),
        "session_ms": round(medians["session"], 3),
        "ratio": round(medians["messages"] / medians["session"], 1),
        "rounds": {name: len(values) for name, values in seconds.items()},
    }


def main() -> None:
    """Measure both runtimes and print the JSON line."""
    options = arguments(__doc__)
    simulation = measure("simulation", options.quick)
    deployed = measure("deployment", options.quick)
    report(
        "flower_messages",
        target="> 100 in the simulation, > 1000 in the deployment",
        met=simulation["ratio"] > 100 and deployed["ratio"] > 1000,
        quick=options.quick,
        payload_bytes_each_way=4 * VALUES,
        parties=PARTIES,
        simulation=simulation,
        deployment=deployed,
    )


if __name__ == "__main__":
    sys.exit(main())
