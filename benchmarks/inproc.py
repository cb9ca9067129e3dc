"""(a) A split run in one process against plain PyTorch loops over the same modules.

Same modules, optimizers, batches and initial weights (the losses are compared, bit for bit), attacks off, one torch
thread, evaluation excluded. One loop has all parties' weights in one optimizer and one backward pass, as a user with
all the data would; the other has one optimizer and one backward pass a party, as split learning has it.

Target of the census preset: at least 0.95 of the first loop's steps per second, and at most 1.03 of the second's time.
`--case small` is a network of 784-128-32 | 32-10 at batch 128: at most 1.10 of the second loop's time, and over TLS
(`--tls`, the party in a process of its own) at most 1.9 of the first's. `--case eight` has eight parties of 98 columns,
98-128-32 each, at batch 1,024: at most 1.08 of the second's; a third loop works in split learning's order there, each
party's update and next forward pass in turn, which shows the part of the time that is due to this order. `--fused`
takes PyTorch's fused optimizers on our side.
"""

from __future__ import annotations

from typing import Any

from harness import compare, parser, report
from lanes import alternating, joined, numbers, parted, preset, split, split_processes

from flower_vfl.apps.factories import open_data
from flower_vfl.config import Config, build_config

TARGETS = {"census": 1.03, "small": 1.10, "eight": 1.08}
"""Largest ratio of the time of a step to that of the loop with an optimizer a party."""

TLS, SPEED = 1.9, 0.95


def config_of(case: str, quick: bool, training: dict[str, Any], kind: str) -> Config:
    """Return the configuration of a case."""
    transport = {"kind": kind, "connect_timeout": 600.0}  # on a busy machine a process takes long to begin
    if case == "census":
        return preset(quick, attack={"names": []}, training=training, transport=transport)
    parties = ["a"] if case == "small" else list("abcdefgh")
    size = {"batch_size": 128 if case == "small" else 1024, "epochs": 10_000, "patience": 0, "learning_rate": 0.001}
    return build_config(
        {
            "threads": 1,
            "parties": {"features": parties},
            "model": {"bottom": [128], "cut": 32, "top": [], "numeric_embedding": "none"},
            "training": {**size, "validation": 0.0, **training},
            "attack": {"names": [], "snapshots": [], "informed": 0, "monitor": False},
            "transport": transport,
        }
    )


def main() -> None:
    """Measure and report."""
    options = parser(__doc__)
    options.add_argument("--case", choices=tuple(TARGETS), default="census", help="the network and its parties")
    options.add_argument("--tls", action="store_true", help="over a stream to processes of their own")
    options.add_argument("--fused", action="store_true", help="with training.fused")
    options.add_argument("--starts", type=int, default=8, help="fresh starts of all sides")
    given = options.parse_args()
    quick, steps = given.quick, 100 if given.case == "small" else 20
    size = {"starts": given.starts, "blocks": 24, "steps": steps}
    if quick:
        size = {"starts": 1, "blocks": 2, "steps": 2}
    config = config_of(given.case, quick, {"fused": given.fused}, "stream" if given.tls else "inproc")
    data = open_data if given.case == "census" else numbers
    ours = ("stream", split_processes, config, data) if given.tls else ("inproc", split, config, False, data)
    lanes = [ours, ("plain", joined, config, data), ("parted", parted, config, data)]
    if given.case == "eight":
        lanes.append(("alternating", alternating, config, data))
    measured = compare(lanes, **size)
    mine, plain, apart, *more = measured.times
    whole, each = mine.over(plain), mine.over(apart)
    if given.tls:
        target, met = f"<= {TLS} of the loop with one optimizer", whole.median <= TLS
    else:
        target = f"<= {TARGETS[given.case]} of the loop with one optimizer a party"
        met = each.median <= TARGETS[given.case]
        if given.case == "census":
            target += f", >= {SPEED} of the steps per second of the loop with one"
            met = met and plain.over(mine).median >= SPEED
    report(
        "inproc",
        target=target,
        met=met,
        quick=quick,
        case=given.case,
        tls=given.tls,
        fused=given.fused,
        speed=plain.over(mine).describe(),
        of_one_optimizer=whole.describe(),
        of_an_optimizer_a_party=each.describe(),
        cpu_of_one_optimizer=mine.cpu_over(plain).describe(),
        cpu_of_an_optimizer_a_party=mine.cpu_over(apart).describe(),
        of_an_alternating_loop=mine.over(more[0]).describe() if more else None,
        ours_ms=mine.milliseconds,
        plain_ms=plain.milliseconds,
        parted_ms=apart.milliseconds,
        equal_losses=measured.equal_values(0, 1),
        equal_losses_parted=measured.equal_values(0, 2),
    )


if __name__ == "__main__":
    main()
