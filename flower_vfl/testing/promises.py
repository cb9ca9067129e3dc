"""Checks of the promises of a defense about true labels: its private loss, and its epsilon."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flower_vfl.data.store.dataset import Labels
from flower_vfl.errors import ConfigError, InputError
from flower_vfl.parties.label import LabelParty
from flower_vfl.protocol.schedule import Schedule
from flower_vfl.strategies.base import Defense
from flower_vfl.testing.subject import ONE_PARTY, PARTIES, Subject, batch, labels_of, strategy
from flower_vfl.training.assembly import build_defenses, prepare_labels
from flower_vfl.training.factories import optimizers_of

_ROWS, _BATCH, _EPOCHS = 256, 64, 2
_LABELS, _MAX_EPSILON = 2**18, 10.0
"""Number of labels that shows whether a defense changes any, and the epsilon above which too few may change."""


def private_losses(subject: Subject) -> Iterator[str]:
    """Check that a private loss reaches the modules of its class, and neither embeddings nor the shared top model."""
    if "private_loss" not in subject.hooks:
        return
    for widths in PARTIES[:2]:
        defense = subject.make(widths=widths)
        top = nn.Linear(sum(widths.values()), 1)
        defense.base.top = top
        labels = defense.prepare_labels(labels_of(_ROWS))[0][:_BATCH]
        rows = np.arange(_BATCH)
        for one in defense.hook_targets:
            one.begin_batch(rows)
        received = {party: (batch(width) * _BATCH).requires_grad_() for party, width in widths.items()}
        parts = [defense.embed(z, party=party)[0].flatten(1) for party, z in received.items()]
        z = torch.cat(parts, dim=1)
        defense.loss(top(z)[:, 0], labels, z)
        value = defense.private_loss(z.detach(), labels_of(_BATCH), rows)
        if value is None:
            continue
        if not isinstance(value, Tensor) or value.dim() or not value.requires_grad:
            yield "private_loss: a differentiable number of its modules is needed, a tensor without dimensions, or None"
            return
        yield from _reach_problems(value, defense, received, top)
        yield from _prediction_problems(defense, z.detach())


def _reach_problems(value: Tensor, defense: Defense, received: Mapping[str, Tensor], top: nn.Module) -> Iterator[str]:
    def reaches(tensors: list[Any]) -> bool:
        found = torch.autograd.grad(value, tensors, retain_graph=True, allow_unused=True) if tensors else ()
        return any(grad is not None for grad in found)

    if not reaches(list(defense.modules.parameters())):
        yield "private_loss: it reaches none of its `modules`, so that nothing learns from true labels"
    if reaches(list(received.values())):
        yield "private_loss: its gradient reaches the embeddings that parties sent: compute from the `z` of the call"
    if reaches(list(top.parameters())):
        yield "private_loss: its gradient reaches the shared top model, whose gradients leave"


def _prediction_problems(defense: Defense, z: Tensor) -> Iterator[str]:
    logits = defense.predict(z)
    if logits is not None and (logits.shape != (len(z),) or not bool(torch.isfinite(logits).all())):
        yield f"predict: finite logits ({len(z)},) are needed for two classes, given {tuple(logits.shape)}"


def kept_draws(subject: Subject) -> Iterator[str]:
    """Check a defense that promises an epsilon by a draw that it keeps.

    `prepare_labels` gets the same labels twice, so that the draw is the same. All other true labels that a defense can
    reach are flipped the second time. Every gradient of two epochs must be bitwise equal. A copy of the labels that a
    class keeps in `prepare_labels` cannot be distinguished from its draw, and is not found.
    """
    if not _promises(subject.make()):
        return
    for widths in PARTIES[:2]:
        try:
            one, other = (_gradients(subject, widths, flipped=flipped) for flipped in (False, True))
        except InputError:
            if widths is ONE_PARTY:
                raise
            continue  # it supports a single party only
        for step, (before, after) in enumerate(zip(one, other, strict=True)):
            if not torch.equal(before, after):
                yield (
                    f"it promises an epsilon by a draw that it keeps, and with the same draw other true labels change "
                    f"the gradients of step {step} ({len(widths)} {'party' if len(widths) == 1 else 'parties'})"
                )
                return


def ends(subject: Subject) -> Iterator[str]:
    """Check that with a promised epsilon no true label decides when training ends."""
    if not _promises(subject.make()):
        return
    changes: dict[str, dict[str, Any]] = {
        "training.patience = 1": {"training": {"patience": 1}},
        "attack.max_leak = 0.6": {"attack": {"max_leak": 0.6}},
    }
    for what, sections in changes.items():
        defense = subject.make()
        config = defense.base.config
        for section, values in sections.items():
            config = config.model_copy(update={section: getattr(config, section).model_copy(update=values)})
        defense.base.config = config
        try:
            for one in defense.hook_targets:
                one.begin()
        except ConfigError:
            continue
        if defense.guarantee() is not None:
            yield (
                f"with {what} true labels decide when training ends, and it promises an epsilon: refuse that in "
                "`begin`, or return None from `guarantee`"
            )


def _promises(defense: Defense) -> bool:
    found = defense.guarantee()
    return found is not None and found.accounted.kept


def _gradients(subject: Subject, widths: Mapping[str, int], *, flipped: bool) -> list[Tensor]:
    """Return the gradients that are sent in two epochs of training on fixed embeddings."""
    truth = labels_of(_ROWS).numpy()
    defense = subject.defense_class(strategy(widths), **subject.params)
    base = defense.base
    base.labels = Labels(truth, truth, 2)
    for one in defense.hook_targets:
        one.begin()
    prepared = prepare_labels(defense)[0]
    if flipped:
        base.labels = Labels(1 - truth, 1 - truth, 2)
        if _keeps_labels(subject):
            prepared = 1 - prepared
    return list(_trained(defense, widths, prepared))


def _trained(defense: Defense, widths: Mapping[str, int], prepared: NDArray[Any]) -> Iterator[Tensor]:
    base = defense.base
    schedule = Schedule(1, _ROWS, 0, _BATCH, _BATCH, _EPOCHS, 0.0)
    learned = build_defenses(defense, {party: (width,) for party, width in widths.items()})
    with torch.random.fork_rng():
        torch.manual_seed(3)
        top = nn.Linear(sum(widths.values()), 1)
    party = LabelParty(
        top,
        optimizers_of(base.config, nn.ModuleDict({"top": top}), schedule),
        prepared,
        defense,
        schedule,
        tuple(widths),
        true_labels=base.labels.train,
        learned=learned,
        learners=[optimizers_of(base.config, module, schedule) for module in learned.values()],
    )
    for step in range(schedule.steps):
        embeddings = {name: batch(width, step=step) * _BATCH for name, width in widths.items()}
        sent = party.train_step(step, embeddings)
        party.learn()
        yield torch.cat([sent.gradients[name].flatten(1) for name in widths], dim=1).clone()
        if (step + 1) % (_ROWS // _BATCH) == 0:
            party.end_epoch()


def _keeps_labels(subject: Subject) -> bool:
    """Return True if the shared network gets true labels: of many randomised ones some would differ."""
    defense = subject.make()
    found = defense.guarantee()
    many = labels_of(_LABELS)
    return (
        found is not None
        and found.epsilon <= _MAX_EPSILON
        and torch.equal(defense.prepare_labels(many.clone())[0], many)
    )
