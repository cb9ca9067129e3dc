"""(z) A run whose metrics are served and read each second against the same run without them.

Census preset, `inproc`, one torch thread, evaluation excluded; a process of its own reads the metrics, fifteen times
as often as Prometheus does by default. The losses are compared, bit for bit. Target: at most 1 % of a step.
"""

from __future__ import annotations

import multiprocessing
import time
import urllib.request
from contextlib import suppress

from harness import Gate, arguments, compare, report
from lanes import preset, split
from slow_link import free_port

from flower_vfl.config import Config

TARGET = 1.01
SECONDS = 1.0

_spawn = multiprocessing.get_context("spawn")


def served(gate: Gate, config: Config) -> None:
    """Train with the metrics on, and let another process read them."""
    port = free_port()
    reader = _spawn.Process(target=read, args=(port,), daemon=True)
    reader.start()
    try:
        split(gate, config.model_copy(update={"metrics_port": port}))
    finally:
        reader.terminate()
        reader.join()


def read(port: int) -> None:
    """Read the metrics repeatedly, as Prometheus does."""
    while True:
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            answer.read()
        time.sleep(SECONDS)


def main() -> None:
    """Measure and report."""
    quick = arguments(__doc__).quick
    config = preset(quick, attack={"names": ["norm"]})
    size = {"starts": 1, "blocks": 4, "steps": 5} if quick else {"starts": 4, "blocks": 24, "steps": 40}
    measured = compare((("served", served, config), ("alone", split, config)), **size)
    with_metrics, without = measured.times
    ratio = with_metrics.over(without)
    report(
        "metrics",
        target=f"<= {TARGET} x a step without",
        met=ratio.median <= TARGET,
        quick=quick,
        ratio=ratio.describe(),
        ratio_of_cpu=with_metrics.cpu_over(without).describe(),
        served_ms=with_metrics.milliseconds,
        alone_ms=without.milliseconds,
        equal_losses=measured.equal_values(0, 1),
    )


if __name__ == "__main__":
    main()
