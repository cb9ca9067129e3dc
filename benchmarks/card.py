"""(x) A step on a GPU with Marvell and all attacks on gradients, against the whole network's step without either.

The ISIC network with batches of 128 photographs' size, and Wide & Deep with batches of 1,024 and a million values, as
the papers have them, on generated data. The other side is a plain PyTorch loop over the joined network, in the same
precision, with batches loaded ahead as well. Target on a GPU: at most 1.15 times. Without one, processors take its
place, which shows nothing about a GPU.

Each start takes turns for at most `SECONDS`, so that a GPU for some minutes suffices. `attack_milliseconds` is the time
of each attack alone, for one step's gradients with the shapes of these networks: it shows which attack is slow.
"""

from __future__ import annotations

import os
import tempfile
from functools import partial
from typing import Any

import numpy as np
import torch
from harness import compare, parser, report
from lanes import joined, split
from torch.utils.benchmark import Timer

from flower_vfl.apps.factories import open_data
from flower_vfl.attacks import RowAttack, make_attacks
from flower_vfl.config import Config, build_config, load_config
from flower_vfl.data.store.dataset import Labels
from flower_vfl.data.store.memory import MemoryData, array_table

TARGET = 1.15
SECONDS = 10.0
STEPS_AT_ONCE = 16
"""Steps whose gradients are scored at once."""
WIDTHS = {"isic cut": (128, 64 * 5 * 5), "isic first": (128, 64 * 84 * 84), "criteo cut": (1_024, 128)}
"""Rows and width of a step's gradients."""
ATTACKS = ["norm", "cosine", "inner_product", "direction_count", "residual", "hint(k=5)"]


def photographs(config: Config) -> MemoryData:
    """Return images for four batches of the paper; one party has them all, the label party has no columns."""
    rows = 4 * config.training.batch_size
    x = np.random.default_rng(0).random((rows + 64, 3, 84, 84), dtype=np.float32)
    y = (np.arange(rows + 64) % 10 == 0).astype(np.int64)
    tables = {"a": array_table("a", x[:rows], x[rows:])}
    return MemoryData("photographs", tables, "label", Labels(y[:rows], y[rows:], 2))


def settings(preset: str, quick: bool, device: str, precision: str) -> Config:
    """Return the configuration of the papers' network for many epochs, without attacks."""
    config = load_config(preset, {"device": device, "precision": precision}).model_dump()
    config["training"] |= {"epochs": 10_000, "weight_decay": 0.0, "embedding_decay": 0.0, "validation": 0.0}
    config["attack"] |= {"names": [], "informed": 0, "snapshots": [], "embeddings": 0}
    if preset == "criteo":
        size = (2_048, 1_000) if quick else (150_000, 1_000_000)
        options = {"rows": size[0], "vocabulary": size[1], "test_rows": 512}
        config["data"] = {"name": "synthetic", "path": "", "options": options}
    if quick:
        config["training"]["batch_size"] = 32
    return build_config(config)


def ratio(preset: str, quick: bool, device: str, precision: str) -> dict[str, Any]:
    """Return the time ratios of a network."""
    bare = settings(preset, quick, device, precision)
    attack = bare.attack.model_copy(update={"names": ATTACKS, "every": 1})
    watched = bare.model_copy(update={"attack": attack, "defenses": [{"name": "marvell", "s": 4.0}]})
    data = photographs if preset == "isic" else open_data
    lanes = [
        ("watched", split, watched, False, data),
        ("defended", split, bare.model_copy(update={"defenses": watched.defenses}), False, data),
        ("bare", split, bare, False, data),
        ("whole", joined, bare, data),
    ]
    size = {"starts": 1, "blocks": 2, "steps": 2} if quick else {"starts": 3, "blocks": 48, "steps": STEPS_AT_ONCE}
    with_all, defended, without, whole = compare(lanes, **size, seconds=SECONDS).times
    return {
        "ratio": with_all.over(whole).describe(),
        "without_attacks": defended.over(whole).describe(),
        "without_either": without.over(whole).describe(),
        "milliseconds": [side.milliseconds for side in (with_all, defended, without, whole)],
    }


def attack_milliseconds(quick: bool, device: str) -> dict[str, dict[str, float]]:
    """Return the milliseconds of each attack for one step's gradients, scored together with those of other steps."""
    found: dict[str, dict[str, float]] = {}
    for shape, (rows, width) in WIDTHS.items():
        steps = 1 if quick or rows * width > 2**24 else STEPS_AT_ONCE
        gradients = torch.randn(steps, rows, width if not quick else 64, device=device)
        known = gradients[:, :10]
        found[shape] = {}
        for attack in make_attacks(build_config({"attack": {"names": ATTACKS}}).attack.calls):
            if not isinstance(attack, RowAttack):
                raise TypeError(f"{attack.label} does not score several steps at once")
            work = partial(attack.rate, gradients, known if attack.needs else None)
            timer = Timer("work()", globals={"work": work})  # it waits for the device
            timed = timer.blocked_autorange(min_run_time=0.01 if quick else 0.3)
            found[shape][attack.label] = round(1_000 * timed.median / steps, 4)
    return found


def main() -> None:
    """Measure and report."""
    options = parser(__doc__)
    options.add_argument("--precision", default="float32", choices=["float32", "tf32", "bfloat16"])
    given = options.parse_args()
    gpu = torch.cuda.is_available()
    with tempfile.TemporaryDirectory(prefix="flower-vfl-benchmark-") as cache:
        os.environ["FLOWER_VFL_CACHE"] = cache
        device = "cuda" if gpu else "cpu"
        found = {preset: ratio(preset, given.quick, device, given.precision) for preset in ("isic", "criteo")}
    report(
        "card",
        target=f"on a GPU <= {TARGET} times the whole network's step",
        met={preset: gpu and one["ratio"]["median"] <= TARGET for preset, one in found.items()},
        quick=given.quick,
        card=torch.cuda.get_device_name() if gpu else "none: not measured, these are processors",
        precision=given.precision,
        attack_milliseconds=attack_milliseconds(given.quick, device),
        **found,
    )


if __name__ == "__main__":
    main()
