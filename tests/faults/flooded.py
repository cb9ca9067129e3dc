"""A run whose lines are cut while strangers flood its port; the tests of floods start it as a process."""

from __future__ import annotations

import json
import random
import resource
import sys
import threading
import time
from pathlib import Path

from flower_vfl import build_config, run
from flower_vfl.attacks.embedding import model_completion
from flower_vfl.strategies import Observer
from flower_vfl.transport.stream import StreamEndpoint
from tests.faults.common import ATTACKER_EPOCHS, setup_of_few
from tests.transport.proxies import Line

WAIT_SECONDS = 60.0


class CutInFlood(Observer):
    """An observer that waits for the flood after the first step, and cuts a line after two of five steps on average."""

    def __init__(self, folder: Path, lines: list[Line]) -> None:
        self.folder, self.lines, self.generator, self.cuts = folder, lines, random.Random(0), 0

    def on_step(self, step: int, epoch: int, loss: float, leak: float) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not (self.folder / "flooded").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        if self.generator.random() < 0.4:
            threading.Timer(0.02 * self.generator.random(), self.generator.choice(self.lines).cut).start()
            self.cuts += 1


def main() -> None:
    """Train in the folder and with the limits of handles of the command line; write the address to flood to a file."""
    folder, soft, hard = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    lines: list[Line] = []
    offer = StreamEndpoint.offer

    def over_a_line(endpoint: StreamEndpoint, node: str) -> dict[str, str | bytes | int]:
        lines.append(Line(endpoint.address))
        offered = {**offer(endpoint, node), "address": lines[-1].address}
        (folder / "endpoint.new").write_text(endpoint.address)
        (folder / "endpoint.new").replace(folder / "endpoint")
        return offered

    StreamEndpoint.offer = over_a_line  # type: ignore[method-assign]
    model_completion.MOST_EPOCHS = ATTACKER_EPOCHS  # as in the run that it is compared with
    cut = CutInFlood(folder, lines)
    run(build_config(setup_of_few("stream")), out=folder / "run", observers=(cut,))
    print(json.dumps({"cuts": cut.cuts, "connections": [line.connections for line in lines]}))  # noqa: T201


if __name__ == "__main__":
    main()
