"""Checks of defenses of cut gradients: no gradient is sent unchanged, whatever the batch."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from scipy.stats import t as student
from torch import Tensor

from flower_vfl.errors import FlowerVflError, InputError
from flower_vfl.protocol.printable import words_of
from flower_vfl.strategies.base import Defense
from flower_vfl.testing.common import GRADIENT_DTYPES, Check, devices, given, scaled
from flower_vfl.testing.subject import PARTIES, Subject, batch, labels_of, log_problems, send

ALARM = 1e-6
"""Probability that an unbiased defense with normal noise is called biased."""

_DRAWS = 400
_TRIES = 8
_DIRECTIONS = 4
_HUGE = 1e20
"""Largest gradient beside which noise of a chosen power must not vanish; larger ones must only stay finite."""


def shapes(subject: Subject) -> Iterator[str]:
    """Check gradients of one party and of several, of vectors and flattened feature maps, joint and per-party."""
    for scope in subject.scopes():
        for widths in PARTIES:
            for rows in (64, 5, 2):
                g = batch(sum(widths.values()), rows=rows)
                what = ", ".join([f"gradients {tuple(g.shape)}", *map("scope {}".format, scope.values())])
                try:
                    with given(what):
                        sent, log = send(subject.make(widths=widths, **scope), g, labels_of(rows))
                except InputError:
                    if min(widths.values()) > 2:  # a cut too narrow for a method may be refused, with a message
                        raise
                    continue
                yield from sent_problems(sent, g, what)
                yield from log_problems(log, what, subject)


def number_formats(subject: Subject) -> Iterator[str]:
    """Check every number format that gradients can have, and the devices of this machine."""
    for dtype in GRADIENT_DTYPES:
        g = batch(8, dtype=dtype)
        yield from _of_format(subject, g, f"gradients in {dtype}")
    for device in devices():
        yield from _of_format(subject, batch(8).to(device), f"gradients on {device}")


def _of_format(subject: Subject, g: Tensor, what: str) -> Iterator[str]:
    with given(what):
        sent, _ = send(subject.make(), g, labels_of(64).to(g.device))
    yield from sent_problems(sent, g, what)


def sent_problems(sent: object, g: Tensor, what: str) -> Iterator[str]:
    """Yield the problems of a tensor that is sent instead of `g`."""
    if not isinstance(sent, Tensor) or sent.shape != g.shape or sent.dtype != g.dtype:
        found = f"{sent.dtype} {tuple(sent.shape)}" if isinstance(sent, Tensor) else type(sent).__name__
        yield f"{what}: it returns {found} for {g.dtype} {tuple(g.shape)}; shape and number format must stay"
    elif sent.device != g.device:
        yield f"{what}: it returns a tensor on {sent.device}"
    elif sent.requires_grad:
        yield f"{what}: what it returns keeps a graph; compute on detached tensors"
    elif not bool(torch.isfinite(sent).all()):
        yield f"{what}: it returns values that are not finite; raise UnprotectedBatchError instead"


def nothing_unprotected(subject: Subject) -> Iterator[str]:
    """Check that no batch, usual or hostile, is sent unprotected, at the start of a training and later."""
    g, y = batch(8), labels_of(64)
    usual = {"a usual batch": g, **scaled(g)}
    hostile = {
        "positives only": (-g.abs(), torch.ones_like(y)),
        "negatives only": (g.abs(), torch.zeros_like(y)),
        "one row alone": (g[:1], y[:1]),
        "an empty batch": (g[:0], y[:0]),
        "zeros only": (torch.zeros_like(g), y),
    }
    for value in (math.nan, math.inf, -math.inf):
        hostile[f"a batch with {value}"] = (g.clone().index_fill_(0, torch.tensor(9), value), y)
    for history in (0, 3):
        when = f" after {history} steps" if history else ""
        for what, part in usual.items():
            yield from _outcome(_trained(subject, history), part, y, f"{what}{when}", subject, usual=True)
        for what, (part, labels) in hostile.items():
            yield from _outcome(_trained(subject, history), part, labels, f"{what}{when}", subject)


def _trained(subject: Subject, steps: int) -> Defense:
    """Return the defense after `steps` usual steps."""
    defense = subject.make()
    for step in range(steps):
        send(defense, batch(8, step=step + 1), labels_of(64))
    return defense


def _outcome(
    defense: Defense, g: Tensor, y: Tensor, what: str, subject: Subject, *, usual: bool = False
) -> Iterator[str]:
    try:
        with given(what):
            sent, log = send(defense, g.clone(), y)
    except FlowerVflError as error:
        if usual:
            yield f"{what}: it is not protected: {words_of(error)}"
        return
    found = list(sent_problems(sent, g, what))
    yield from found
    yield from log_problems(log, what, subject)
    if found:
        return
    nonzero = torch.isfinite(g).all(dim=1) & (g != 0).any(dim=1)
    if usual and not bool(sent.any()):
        yield f"{what}: zeros are sent, the feature parties learn nothing"
    elif bool(nonzero.any()) and torch.equal(sent[nonzero], g[nonzero]) and float(g[nonzero].abs().max()) < _HUGE:
        yield f"{what}: it goes out as it is; change it, withhold it as zeros or raise UnprotectedBatchError"


def zero_rows(subject: Subject) -> Iterator[str]:
    """Check that rows of zeros cannot be recognised because they alone are sent as zeros."""
    g, y, defense = batch(8), labels_of(64), subject.make()
    zeros = torch.tensor([0, 1, 7])
    g[zeros] = 0.0
    others = torch.ones(64, dtype=torch.bool).index_fill(0, zeros, value=False)
    for _ in range(_TRIES):
        try:
            sent, _ = send(defense, g.clone(), y)
        except FlowerVflError:
            return
        silent = (sent == 0).all(dim=1)
        if bool(silent[others].any()) or not bool(silent[zeros].all()):
            return
    yield "a row of zeros: it is sent as zeros and no other row is, so that it stands out; put noise on it as well"


def unbiased(subject: Subject) -> Iterator[str]:
    """Check that the noise is zero on average, where the class declares ``unbiased``.

    Sums over the batch are compared with zero by Student's t test, each at a level at which all together give a false
    alarm with probability `ALARM` for normal noise; sums of other noise are close enough to normal.
    """
    if not getattr(subject.defense_class, "unbiased", False):
        return
    g, y, defense = batch(8, dtype=torch.float64), labels_of(64), subject.make()
    noise = torch.stack([send(defense, g.clone(), y, first=64 * draw)[0] - g for draw in range(_DRAWS)])
    signs = torch.randint(0, 2, (_DIRECTIONS, *g.shape), generator=torch.Generator().manual_seed(1)).double() * 2 - 1
    along = torch.einsum("nbd,kbd->nk", noise, torch.cat([signs, g[None] / g.abs().max()]))
    sums = torch.cat([along, noise[:, y == 0].sum(dim=1), noise[:, y == 1].sum(dim=1)], dim=1)
    mean, spread = sums.mean(dim=0), sums.std(dim=0) / math.sqrt(_DRAWS)
    limit = float(student.isf(ALARM / 2 / sums.shape[1], _DRAWS - 1))
    rounding = 1e-9 * float(g.abs().sum())
    if bool((mean.abs() > limit * spread + rounding).any()):
        share = float((noise.mean(dim=0) * g).sum() / g.square().sum())
        yield (
            f"it is declared unbiased, but over {_DRAWS} draws its noise is not zero on average (false alarm: "
            f"{ALARM:g}); along the gradients it is {share:+.1%} of them"
        )


PROTECTION: tuple[Check[Subject], ...] = (shapes, number_formats, nothing_unprotected, zero_rows, unbiased)
"""The checks of a defense that changes cut gradients."""
