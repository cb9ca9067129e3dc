"""Operations and waits of a step on a GPU, counted on the stand-in: `python -m tests.card.counts`.

Start and end of training are left out. Two networks of the papers are trained without defense and attacks, with
Marvell, with six attacks on gradients and the monitor, and with both. The step of the whole network is that of the same
network in one plain loop. The counts do not depend on the size of batches.
"""

from __future__ import annotations

import logging
import sys

import numpy as np
import torch
from torch import nn

from flower_vfl.apps.factories import default_bottom, default_own, default_top
from flower_vfl.apps.local import run
from flower_vfl.nn.fusion import fuse
from flower_vfl.nn.optim import Optimizers
from flower_vfl.parties.network import adds_to_logits
from tests.card.device import card, counting
from tests.card.test_runs import config_of, images, paper
from tests.toys import mixed_data

ATTACKS = ["norm", "cosine", "inner_product", "direction_count", "residual", "hint(k=5)"]
NETWORKS = {
    "Wide & Deep": (
        lambda: mixed_data(160, 20),
        {"model": {"network": "wide-deep", "bottom": [16, 16], "top": [16, 16, 16]}},
        "b",
    ),
    "ISIC": (images(3, 84, 84), paper("isic"), ""),
}
VARIANTS = {
    "bare": ("", []),
    "Marvell": ("marvell(s=4.0)", []),
    "attacks": ("", ATTACKS),
    "both": ("marvell(s=4.0)", ATTACKS),
}
BATCH = 16


def split(make, sections, defenses, attacks):
    """Return the operations and the waits of a step: the difference of two trainings, of one and of two epochs."""
    found, data = [], make()
    for epochs in (1, 2):
        training = {**sections.get("training", {}), "epochs": epochs, "batch_size": BATCH, "validation": 0.0}
        config = config_of({**sections, "training": training}, defenses, attacks)
        with card() as device, counting() as waits:
            run(config.model_copy(update={"device": device}), data=lambda _: data)
        found.append((waits.launches, waits.total()))
    steps = -(-len(data.labels().train) // BATCH)
    return [(after - before) / steps for before, after in zip(*found, strict=True)]


def whole(make, sections, own):
    """Return the operations and the waits of a step of the whole network in one plain loop."""
    data, config = make(), config_of(sections, "", [])
    parties = [party for party in data.parties if party != own]
    with card() as device:
        parts = {party: default_bottom(data.party(party).spec, config) for party in parties}
        if own:
            parts[own] = default_own(data.party(own).spec, 2, config)
        rows = np.arange(BATCH)
        inputs = {party: data.party(party).train.gather(rows) for party in parts}
        adders = [party for party, part in parts.items() if adds_to_logits(part)]
        shape = torch.cat([parts[p].eval()(*inputs[p]) for p in parts if p not in adders], dim=1).shape[1:]
        network = nn.ModuleList([*parts.values(), default_top(tuple(shape), 2, config)]).to(device).train()
        optimizers = Optimizers(network, "adam", learning_rate=0.001)
        targets = torch.ones(BATCH)
        for _ in range(2):  # the first step also makes the optimizers' states
            with counting() as waits:
                labels = targets.to(device, non_blocking=True)
                found = {
                    party: part(*(tensor.to(device, non_blocking=True) for tensor in inputs[party]))
                    for party, part in zip(parts, network, strict=False)
                }
                logits = network[-1](fuse([found[party] for party in found if party not in adders], "concat")).flatten()
                logits = sum((found[party].flatten() for party in adders), logits)
                loss = nn.functional.binary_cross_entropy_with_logits(logits, labels)
                optimizers.zero_grad()
                loss.backward()
                optimizers.step()
                loss.item()
    return waits.launches, waits.total()


def main() -> None:
    """Print the counts, one line for each network and variant."""
    logging.disable(logging.WARNING)
    for name, (make, sections, own) in NETWORKS.items():
        found = {"whole network": whole(make, sections, own)}
        found |= {variant: split(make, sections, *setting) for variant, setting in VARIANTS.items()}
        for variant, (operations, waits) in found.items():
            sys.stdout.write(f"{name}, {variant}: {operations:.0f} operations, {waits:.1f} waits\n")


if __name__ == "__main__":
    main()
