"""(k) Steps over slow links against the same run over loopback, one and automatically chosen steps in flight.

The feature party is a process of its own behind a proxy that holds its bytes back (`slow_link.py`): round trips of 1,
20 and 100 ms with the census preset (32 wide, 128 KiB each way), and 100 Mbit/s with a cut of 128 (512 KiB), in float32
and in float16. Attacks off. Targets of the automatic choice: 20 ms >= 0.8 of loopback with one step in flight, 100 ms
>= 0.5, 100 Mbit/s >= 0.8 of the frames that the link can carry, or of loopback where computing takes longer than that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness import Measured, arguments, compare, report
from lanes import over_a_link, preset, split_processes

from flower_vfl.config import Config

_BITS = {"exact": 32, "float16": 16}


@dataclass(frozen=True)
class Line:
    """A link, and what is carried over it.

    Attributes
    ----------
    round_trip : float
        Milliseconds of a round trip.
    megabits : float
        Mbit/s each way; 0 for no limit.
    wire_dtype : str
        Number format on the wire.
    cut : int
        Width of the embeddings.
    target : float
        Least share of the speed without the link, or of what the link carries.
    """

    round_trip: float
    megabits: float
    wire_dtype: str
    cut: int
    target: float

    @property
    def name(self) -> str:
        """Name of the link and of the number format."""
        link = f"{self.megabits:g} Mbit/s" if self.megabits else f"{self.round_trip:g} ms"
        return f"{link} {'float32' if self.wire_dtype == 'exact' else self.wire_dtype}"

    def config(self, quick: bool, in_flight: int, wire_dtype: str) -> Config:
        """Return the run's configuration."""
        transport = {"kind": "stream", "in_flight": in_flight, "wire_dtype": wire_dtype}
        return preset(quick, attack={"names": []}, model={"cut": self.cut}, transport=transport)

    def carried_ms(self, config: Config) -> float:
        """Return the milliseconds that the link needs for a frame's payload; 0 without a limit."""
        bits = config.training.batch_size * self.cut * _BITS[self.wire_dtype]
        return bits / self.megabits / 1000 if self.megabits else 0.0


LINES = (
    Line(
        1, 0, "exact", 32, 0.7
    ),  # no target of ours: the accepted cost of staying exact (`pipeline_depth.WORTHWHILE_SHARE`)
    Line(20, 0, "exact", 32, 0.8),
    Line(20, 0, "float16", 32, 0.8),
    Line(100, 0, "exact", 32, 0.5),
    Line(100, 0, "float16", 32, 0.5),
    Line(0, 100, "exact", 128, 0.8),
    Line(0, 100, "float16", 128, 0.8),
)


def measure(line: Line, *, quick: bool, starts: int, blocks: int, steps: int) -> dict[str, Any]:
    """Compare one link with loopback, with one and with automatically chosen steps in flight."""
    link = (line.round_trip / 1000, line.megabits)
    chosen = line.config(quick, 0, line.wire_dtype)
    lanes = (
        ("loopback", split_processes, line.config(quick, 1, "exact")),
        ("one", over_a_link, line.config(quick, 1, line.wire_dtype), *link),
        ("chosen", over_a_link, chosen, *link),
    )
    measured = compare(lanes, starts=starts, blocks=blocks, steps=steps)
    loopback, one, auto = measured.times
    carried = line.carried_ms(chosen)
    share = loopback.over(auto).describe()
    reached = max(share["median"], carried / auto.milliseconds)  # where computing takes longer, it is the limit
    return {
        "of_loopback": share,
        "one_in_flight_of_loopback": loopback.over(one).describe(),
        "of_what_the_link_carries": round(carried / auto.milliseconds, 3) if carried else None,
        "in_flight": _in_flight(measured),
        "ms": {"loopback": loopback.milliseconds, "one": one.milliseconds, "chosen": auto.milliseconds},
        "target": line.target,
        "met": reached >= line.target,
    }


def _in_flight(measured: Measured) -> list[int]:
    """Return the steps in flight that were chosen at each start."""
    return [results[2]["more"]["in_flight"] for results in measured.results]


def main() -> None:
    """Measure and report."""
    quick = arguments(__doc__).quick
    size = {"starts": 1, "blocks": 2, "steps": 2} if quick else {"starts": 2, "blocks": 6, "steps": 40}
    lines = LINES[1:2] if quick else LINES
    links = {line.name: measure(line, quick=quick, **size) for line in lines}
    report(
        "links",
        target="20 ms >= 0.8 of loopback, 100 ms >= 0.5, 100 Mbit/s >= 0.8 of what the link carries",
        met={name: found["met"] for name, found in links.items()},
        quick=quick,
        links=links,
    )


if __name__ == "__main__":
    main()
