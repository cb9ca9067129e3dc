"""Scores of attacks on the gradients of many runs in one step: each score vector is computed once for all scorers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flower_vfl.attacks.base import HINTS, REFERENCE, RowAttack
from flower_vfl.auditing.audit_labels import draw_positives
from flower_vfl.auditing.batched_scoring import rate
from flower_vfl.auditing.shared_state import rounding
from flower_vfl.errors import ConfigError
from flower_vfl.metrics import ArgumentError
from flower_vfl.metrics.of_many_runs import separations
from flower_vfl.registry import from_elsewhere
from flower_vfl.simulations.stacked.records import Records, ViewResults

SENT, CLEAN = "sent", "clean"
"""The gradients of a view: those that are sent, or those before any defense."""


@dataclass(frozen=True)
class StackedView:
    """Gradients that are attacked.

    Attributes
    ----------
    parties
        The attacked party, or a colluding group.
    layer
        Layer of the gradients.
    shows
        `SENT` or `CLEAN`.
    names
        Name prefixes of the leak AUC and the detection error, one for each scorer.
    attacks
        The instances for this view alone.
    """

    parties: tuple[str, ...]
    layer: str
    shows: str
    names: tuple[str, ...]
    attacks: tuple[RowAttack, ...] = ()

    def readings(self, name: str) -> list[ViewResults]:
        """Return the readings of this view under one name, an entry an attack."""
        metrics = (f"{name}_auc".lstrip("_"), f"{name}_detection_error".lstrip("_"))
        party = "+".join(self.parties)
        return [
            ViewResults(
                party, self.layer, attack.label, metrics, attack.hints if attack.needs else 0, partial(_kept, attack)
            )
            for attack in self.attacks
        ]


def _kept(attack: RowAttack, run: int) -> dict[str, Any]:
    """Return an attack's state of one run."""
    return {name: value[run].clone() if isinstance(value, Tensor) else value for name, value in attack.state().items()}


@dataclass(frozen=True)
class Batch:
    """The labels and side information of one step of R runs, for all scorers.

    Attributes
    ----------
    positive
        (R, B) mask of the positive rows.
    reference
        (R,) the row with the clean gradient for oracle attacks, in `references` for each order of rows; `referred` (R,)
        is true where there is one.
    hints
        (R, k) the rows with gradients that are known to be positives', `hinted` (R,) their number.
    """

    positive: Tensor
    reference: Tensor
    references: list[int]
    referred: NDArray[np.bool_]
    hints: Tensor
    hinted: NDArray[np.int64]

    def at(self, rows: Tensor, gradients: Tensor) -> Tensor:
        """Return the given rows (R, k) of gradients (R, B, D), as (R, k, D)."""
        return gradients.gather(1, rows[..., None].expand(-1, -1, gradients.shape[2]))


def batch_of(labels: Sequence[NDArray[np.bool_]], which: Tensor, step: int, most: int) -> Batch:
    """Return the labels and side information of a step.

    Parameters
    ----------
    labels : Sequence of NDArray
        (B,) mask of the positive rows, for each order of rows.
    which : Tensor
        (R,) index of each run's order of rows.
    step : int
        The step.
    most : int
        Largest number of hints of an attack.
    """
    references, referred, hints, hinted = [], [], [], []
    for positive in labels:
        drawn = draw_positives(positive, step, REFERENCE)
        references.append(int(drawn[0]) if drawn.size else 0)
        referred.append(drawn.size > 0)
        known = draw_positives(positive, step, HINTS)[:most]
        hints.append(np.pad(known, (0, most - known.size)))
        hinted.append(known.size)
    runs, device = which.cpu().numpy(), which.device
    return Batch(
        torch.from_numpy(np.stack(labels)).to(device)[which],
        torch.tensor(references, device=device)[which],
        references,
        np.array(referred)[runs],
        torch.from_numpy(np.stack(hints)).to(device)[which],
        np.array(hinted)[runs],
    )


class Readers:
    """An evaluator that runs attacks on the views of R runs and records their leak AUC.

    Parameters
    ----------
    attacks : Sequence[RowAttack]
        The attacks that are run; each view gets instances of its own.
    views : Sequence[StackedView]
        The attacked views.
    changed : NDArray
        (R,) True for runs whose defense changes gradients: only these have others than the sent ones.
    """

    def __init__(self, attacks: Sequence[RowAttack], views: Sequence[StackedView], changed: NDArray[np.bool_]) -> None:
        self.attacks, self._changed = list(attacks), changed
        self.views = [replace(view, attacks=tuple(attack.fresh() for attack in attacks)) for view in views]
        self._pending: list[tuple[int, int, Tensor, list[NDArray[np.bool_]]]] = []
        self._compared = False
        self.most_hints = max((attack.hints for attack in attacks if HINTS in attack.needs), default=0)
        self.refers = any(REFERENCE in attack.needs for attack in attacks)

    def read(
        self,
        step: int,
        epoch: int,
        batch: Batch,
        gradients: Mapping[tuple[str, str, str], Tensor],
        references: Mapping[tuple[str, str], Tensor],
    ) -> None:
        """Attack one step; the results stay on the device until `settle`.

        Parameters
        ----------
        step, epoch : int
            The step and its epoch.
        batch : Batch
            Its labels and side information.
        gradients : Mapping
            (R, B, D) by party, layer, and `SENT` or `CLEAN`.
        references : Mapping
            (R, D) clean gradients of the reference rows, by party and layer.

        Raises
        ------
        ConfigError
            When an attack modifies its input, or an attack of another package scores several runs otherwise than one.
        """
        scores, measured, known = [], [], []
        all_rows = torch.ones_like(batch.positive)
        masks = [_measured(attack, batch, all_rows) for attack in self.attacks]
        for view in self.views:
            rows = _joined([gradients[party, view.layer, view.shows].flatten(2) for party in view.parties])
            reference = None
            if self.refers:
                reference = _joined([references[party, view.layer] for party in view.parties])[:, None]
            hints = batch.at(batch.hints, rows) if self.most_hints else None
            for attack, (kept, possible) in zip(view.attacks, masks, strict=True):
                side = _side_rows(attack, reference, hints)
                scores.append(rate(attack, rows, side))
                if not self._compared and from_elsewhere(type(attack)):
                    _compare(attack, rows, side, scores[-1])
                measured.append(kept)
                known.append(possible)
        self._compared = True
        if scores:  # all at once: one after the other takes ten times as many operations
            together = torch.stack(scores)  # in the widest number format of all
            found = [*separations(together, batch.positive, torch.stack(measured)), together.isnan().sum(dim=-1)]
            self._pending.append((step, epoch, torch.stack(found, dim=1), known))

    def settle(self, records: Records, diverged: NDArray[np.bool_]) -> None:
        """Record the pending steps, with one read from the device.

        Raises
        ------
        ArgumentError
            When an attack's scores of a run that has not diverged, (R,), are NaN.
        """
        if not self._pending:
            return
        numbers = torch.stack([found for _, _, found, _ in self._pending]).cpu().numpy()
        for (step, epoch, _, known), values in zip(self._pending, numbers, strict=True):
            entries = iter(zip(values, known, strict=True))
            for view in self.views:
                of_view = [next(entries) for _ in self.attacks]
                of_runs = None if view.shows == SENT else self._changed
                for name in view.names:
                    for reading, ((*pair, missing), possible) in zip(view.readings(name), of_view, strict=True):
                        if missing[possible & ~diverged].any():
                            raise ArgumentError(f"the attack {reading.attack!r}: scores of step {step} are NaN")
                        for metric, value in zip(reading.metrics, pair, strict=True):
                            key = (reading.party, reading.layer, reading.attack, metric)
                            records.add(key, step, epoch, np.where(possible, value, np.nan), of_runs)
        self._pending = []


def _compare(attack: RowAttack, rows: Tensor, side: Tensor | None, scores: Tensor) -> None:
    """Refuse an attack whose scores (R, B) of the first step are not those of new instances, one for each run."""
    for run, own in enumerate(scores):
        alone = rate(attack.fresh(), rows[run], None if side is None else side[run])
        if not torch.allclose(own, alone, atol=rounding(own), equal_nan=True):
            raise ConfigError(
                f"the attack {attack.label!r}: `rate` gives rows (R, B, D) of several runs other scores than (B, D) of "
                "each run; let it work over the last two dimensions, as in rows.mean(dim=-2)"
            )


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=-1)


def _measured(attack: RowAttack, batch: Batch, kept: Tensor) -> tuple[Tensor, NDArray[np.bool_]]:
    """Return the mask of the rows (R, B) that are measured, and that of the runs with the attack's side information."""
    if HINTS in attack.needs:
        return kept.scatter(1, batch.hints[:, : attack.hints], False), batch.hinted >= attack.hints
    if REFERENCE in attack.needs:
        return kept.scatter(1, batch.reference[:, None], False), batch.referred
    return kept, np.ones_like(batch.referred)


def _side_rows(attack: RowAttack, reference: Tensor | None, hints: Tensor | None) -> Tensor | None:
    """Return the side information of an attack, (R, k, D)."""
    if HINTS in attack.needs and hints is not None:
        return hints[:, : attack.hints]
    return reference if REFERENCE in attack.needs else None
