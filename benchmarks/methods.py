"""(g) The cost of attacks and defenses in a training step, each against the same run without any.

Census preset, batches of 1,024, `inproc`, one torch thread, evaluation excluded. Attacks read the cut and the first
layer, without the label party's monitor, whose cost is reported beside. Targets: all attacks but direction count and
residual together at most 15 %, direction count at most 30 % more than the others or than none, residual at most 10 %;
alone they bear the shared cost of attacks, that is the gradients that are kept and the journal. These read each step;
`residual_by_default` reads at the default cadence of the preset's six epochs. Each defense at most 10 %. The defaults,
practical attacks and informed readers at their cadence in the preset's six epochs, with the monitor: at most 15 %;
`epoch_end_ms` is the time of discriminants after each epoch beside that, and `defaults_with_epoch_end` includes it.
`defended_defaults` is the same behind marvell_full, where the monitor also attacks the gradients before the defense,
against a step with marvell_full alone.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
import torch
from harness import arguments, compare, report
from lanes import preset, split

from flower_vfl.auditing.halves import Split
from flower_vfl.auditing.informed import InformedAudit
from flower_vfl.auditing.recorder import NoRecorder
from flower_vfl.config.schema import AttackConfig
from flower_vfl.protocol.schedule import Schedule

DEFAULTS, CENSUS_STEPS = AttackConfig(), 792
"""Default attack settings, and the number of steps of the preset, which sets their cadence."""

BATCH = 1024

CHEAP = ["norm", "cosine", "inner_product", "hint(k=5)"]
TARGETS = {
    "attacks": 1.15,
    "attacks_and_direction_count": 1.45,
    "direction_count": 1.3,
    "residual": 1.1,
    "residual_by_default": 1.1,
    "iso": 1.1,
    "max_norm": 1.1,
    "marvell": 1.1,
    "marvell_full": 1.1,
    "local_head": 1.1,
    "defaults": 1.15,
    "defended_defaults": 1.15,
}


def epoch_end_ms(rows: int) -> float:
    """Return the milliseconds that the informed audit takes after an epoch of `rows` rows, without the first epoch."""
    labels = (np.random.default_rng(0).random(rows) < 0.083).astype(np.int64)
    schedule = Schedule(0, rows, 0, BATCH, BATCH, 4, validation=0.0)
    audit = InformedAudit(
        labels,
        2,
        [1],
        schedule,
        Split(1),
        party="a",
        defended=True,
        recorder=NoRecorder(),
        rows=DEFAULTS.informed,
        every=DEFAULTS.cadence(CENSUS_STEPS),
    )
    generator, found = torch.Generator().manual_seed(0), []
    for step in range(schedule.steps):
        drawn, epoch = schedule.train_batch(step), schedule.epoch_of(step)
        g, z = torch.randn(2, len(drawn), 32, generator=generator).unbind()
        started = time.perf_counter()
        audit.observe(step, epoch, drawn, z, g)
        if step == schedule.steps_of(epoch)[-1] and epoch > 1:
            found.append(1e3 * (time.perf_counter() - started))
    return statistics.median(found)


def main() -> None:
    """Measure and report."""
    quick = arguments(__doc__).quick

    def without_attacks(**sections: Any) -> Any:
        return preset(quick, **({"attack": {"names": []}} | sections))

    by_default = {"informed": DEFAULTS.informed, "every": DEFAULTS.cadence(CENSUS_STEPS)}
    configs = {
        "none": without_attacks(),
        "attacks": preset(quick, attack={"names": CHEAP, "monitor": False}),
        "attacks_and_monitor": preset(quick, attack={"names": CHEAP}),
        "attacks_and_direction_count": preset(quick, attack={"names": [*CHEAP, "direction_count"], "monitor": False}),
        **{name: preset(quick, attack={"names": [name], "monitor": False}) for name in ("direction_count", "residual")},
        "residual_by_default": preset(
            quick, attack={"names": ["residual"], "monitor": False, "every": DEFAULTS.cadence(CENSUS_STEPS)}
        ),
        "defaults": preset(quick, attack=by_default),
        **{name: without_attacks(defenses=[{"name": name}]) for name in ("iso", "max_norm", "marvell", "marvell_full")},
        "local_head": without_attacks(defenses=[{"name": "local_head", "epsilon": 1.0}]),
        "defended_defaults": preset(quick, attack=by_default, defenses=[{"name": "marvell_full"}]),
    }
    size = {"starts": 1, "blocks": 2, "steps": 5} if quick else {"starts": 4, "blocks": 24, "steps": 20}
    measured = compare([(name, split, config) for name, config in configs.items()], **size)
    times = dict(zip(configs, measured.times, strict=True))
    rows = 4096 if quick else 134_258
    at_end, steps = epoch_end_ms(rows), -(-rows // BATCH)
    plain = {name: times["marvell_full" if name == "defended_defaults" else "none"] for name in times}
    ratios = {name: lane.over(plain[name]) for name, lane in times.items() if name != "none"}
    report(
        "methods",
        target=", ".join(f"{name} <= {limit}" for name, limit in TARGETS.items()),
        met={name: ratios[name].median <= limit for name, limit in TARGETS.items()},
        quick=quick,
        ratios={name: ratio.describe() for name, ratio in ratios.items()},
        ratios_of_cpu={name: times[name].cpu_over(plain[name]).median for name in ratios},
        step_ms=times["none"].milliseconds,
        epoch_end_ms=round(at_end, 1),
        defaults_with_epoch_end=round(ratios["defaults"].median + at_end / steps / times["none"].milliseconds, 4),
    )


if __name__ == "__main__":
    main()
