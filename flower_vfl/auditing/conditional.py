"""The conditional oracle: the leak of a gradient to a reader that knows everything about its row but the label.

A certificate is marginal over rows: it bounds attacks without other information on a row than its gradient. Each
gradient is (p - y) dh/dz before the noise, with the label party's own prediction p for the row and the slope dh/dz of
its logit. This oracle knows p, dh/dz and the law of the noise, so that only the label is unknown, and ranks rows by
the likelihood ratio of the two labels. No real reader has that knowledge. The oracle is a measurement of the defense.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flower_vfl.auditing.entries import CONDITIONAL
from flower_vfl.auditing.noise import WIDEST_COVARIANCE, NoiseModel
from flower_vfl.auditing.summary_state import restore_summary, summary_state
from flower_vfl.errors import ArgumentError
from flower_vfl.metrics import separation
from flower_vfl.metrics.summary import LeakSummary
from flower_vfl.protocol.tensors import brought

CONDITIONAL_NEEDS = ("noise", "predictions", "reference", "slopes")
"""Its side information; `reference`, a clean gradient, makes it an oracle for every reader of a result."""

Record = Callable[..., None]
"""A recorder of a value: the keywords are `step`, `epoch`, `party`, `layer`, `attack`, `metric` and `value`."""


class ConditionalOracle:
    """A scorer of the conditional oracle at each party and each group of parties, step by step.

    Parameters
    ----------
    parties : Sequence[str]
        Feature parties, and colluding groups of them, such as "a+b".
    labels : NDArray
        (N,) true labels, 0 or 1.
    every : int
        Number of steps from one scored step to the next.
    record : Record
        Function that is called with each value.
    """

    def __init__(self, parties: Sequence[str], labels: NDArray[Any], *, every: int, record: Record) -> None:
        self._labels, self.every, self._record = labels, every, record
        self._leaks = {party: _summary(party) for party in parties}

    @torch.no_grad()
    def observe(
        self,
        step: int,
        epoch: int,
        rows: NDArray[np.integer],
        sent: Mapping[str, Tensor],
        known: Tensor,
        noise: Sequence[NoiseModel | None],
    ) -> None:
        """Score one step.

        Parameters
        ----------
        step, epoch : int
            The step and its epoch.
        rows : NDArray
            (B,) rows of the step.
        sent : Mapping[str, Tensor]
            (B, ...) gradients sent to each feature party, in the order of the columns.
        known : Tensor
            (2, B, D) the gradients before the noise with either label, see `flower_vfl.auditing.noise.hypotheses`.
        noise : Sequence of NoiseModel
            One model for all parties, or one for each, in their order; None where a batch's noise is unknown.
        """
        places, start = dict[str, slice](), 0
        for party, tensor in sent.items():
            width = tensor.shape[1:].numel()
            places[party], start = slice(start, start + width), start + width
        if known.device.type != "cpu":  # a GPU is waited for once
            *tensors, known = brought([*sent.values(), known])
            sent = dict(zip(sent, tensors, strict=True))
        labels = self._labels[rows]
        positives = int(np.count_nonzero(labels))
        for name, leaks in self._leaks.items():
            ratio = log_ratio({party: sent[party] for party in name.split("+")}, known, noise, places)
            value, error = (math.nan, math.nan) if ratio is None else separation(ratio.numpy(), labels)
            leaks.add(value, len(labels) - positives, positives, error)
            for metric, number in (("monitor_auc", value), ("monitor_detection_error", error)):
                self._record(
                    step=step, epoch=epoch, party=name, layer="cut", attack=CONDITIONAL, metric=metric, value=number
                )

    def entries(self) -> list[dict[str, Any]]:
        """Return one entry for each party with a scored step, for `result.json`."""
        return [{**leaks.result(), "label": CONDITIONAL} for leaks in self._leaks.values() if leaks.values]

    def state(self) -> dict[str, Any]:
        """Return the measurements so far, as plain values and tensors."""
        return {name: summary_state(leaks) for name, leaks in self._leaks.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`; parties that are not in it start without measurements."""
        for name, leaks in self._leaks.items():
            restore_summary(leaks, state.get(name) or summary_state(_summary(name)))


def _summary(party: str) -> LeakSummary:
    return LeakSummary(CONDITIONAL, party, source="monitor", defended=True)


def log_ratio(
    sent: Mapping[str, Tensor], known: Tensor, noise: Sequence[NoiseModel | None], places: Mapping[str, slice]
) -> Tensor | None:
    """Return the log-likelihood ratio of each row, (B,), for parties that share their gradients.

    Parameters
    ----------
    sent : Mapping[str, Tensor]
        (B, ...) gradients that each party received.
    known : Tensor
        (2, B, D) gradients before the noise, with label 0 and with label 1.
    noise : Sequence of NoiseModel
        One model for all parties, or one for each of `places`.
    places : Mapping[str, slice]
        The columns of each feature party, in order.

    Returns
    -------
    Tensor or None
        The ratios; None where the noise is unknown, or the gradients are wider than `WIDEST_COVARIANCE`.
    """
    order = list(places)
    separate = len(noise) == len(order)  # each party has noise of its own
    models = [noise[order.index(party)] for party in sent] if separate else [*noise]
    if None in models or sum(places[party].stop - places[party].start for party in sent) > WIDEST_COVARIANCE:
        return None
    if not separate:
        joined = torch.cat([tensor.flatten(1) for tensor in sent.values()], dim=1)
        return _ratio(models[0], joined, known, [places[party] for party in sent])
    ratios = [
        _ratio(model, tensor.flatten(1), known[:, :, places[party]], [slice(0, tensor.shape[1:].numel())])
        for model, (party, tensor) in zip(models, sent.items(), strict=True)
    ]
    return torch.stack(ratios).sum(dim=0)  # independent noise: likelihood ratios multiply


def _ratio(model: NoiseModel | None, sent: Tensor, known: Tensor, places: Sequence[slice]) -> Tensor:
    if model is None:
        raise ArgumentError("nothing is known of this noise")
    columns = torch.cat([torch.arange(place.start, place.stop) for place in places])
    return model.log_ratio(sent, known, columns)
