"""The leakage monitor: the label party attacks its own outgoing messages, so that a deployment is measured too.

It sees the cut layer only: what a party reads from its earlier layers stays with that party.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from flower_vfl.attacks.base import Attack
from flower_vfl.parties.scoring import AuditLabels, Recorder, Scorer
from flower_vfl.protocol.schedule import Rows
from flower_vfl.protocol.transcript import StepTrace, Transcript


class LeakageMonitor:
    """Scores what is about to be sent to each party.

    Parameters
    ----------
    parties : Sequence[str]
        Feature parties.
    attacks : Sequence[Attack]
        What is run.
    labels : AuditLabels
        The true labels; they do not leave this object.
    defended : bool
        Whether any defense is in force.
    recorder : Recorder
        Where each value goes.
    every : int
        Score each so many steps.
    """

    def __init__(
        self,
        parties: Sequence[str],
        attacks: Sequence[Attack],
        labels: AuditLabels,
        *,
        defended: bool,
        recorder: Recorder,
        every: int,
    ) -> None:
        self._seen = {
            party: (
                Transcript(),
                Scorer(
                    attacks,
                    ["cut"],
                    labels,
                    party=party,
                    source="monitor",
                    defended=defended,
                    recorder=recorder,
                    every=every,
                ),
            )
            for party in parties
        }

    @torch.no_grad()
    def observe(
        self, step: int, epoch: int, rows: Rows, embeddings: Mapping[str, Tensor], gradients: Mapping[str, Tensor]
    ) -> None:
        """Attack one step's outgoing gradients."""
        for party, (transcript, scorer) in self._seen.items():
            transcript.record(StepTrace(step, epoch, rows, embeddings[party], {"cut": gradients[party]}))
            scorer.score(transcript)

    @property
    def last(self) -> float:
        """The largest leak AUC of the last step over parties and attacks."""
        return _largest(scorer.last for _, scorer in self._seen.values())

    @property
    def epoch_q95(self) -> float:
        """The largest 95 % quantile of the current epoch over parties and attacks."""
        return _largest(scorer.epoch_q95 for _, scorer in self._seen.values())

    def entries(self) -> list[dict[str, Any]]:
        """Return one entry a party and attack for `result.json`."""
        return [entry for _, scorer in self._seen.values() for entry in scorer.entries()]


def _largest(values: Any) -> float:
    return max((value for value in values if not math.isnan(value)), default=math.nan)
