"""An attacker: a feature party that follows the protocol to the letter, and looks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from flower_vfl.attacks.base import Attack
from flower_vfl.errors import ProtocolError
from flower_vfl.nn.layers import watched_layers
from flower_vfl.parties.feature import FeatureParty
from flower_vfl.parties.scoring import AuditLabels, NoRecorder, Recorder, Scorer
from flower_vfl.protocol.frame import Frame, Kind
from flower_vfl.protocol.schedule import Rows
from flower_vfl.protocol.transcript import StepTrace, Transcript


class Attacker(FeatureParty):
    """A feature party with attacks attached.

    It records a transcript of what it saw: cut gradients, and by going on with back-propagation the gradients of its
    own earlier layers. In a simulation a scorer beside it compares the attacks' scores with true labels that come over
    the audit channel; the attacks themselves see the transcript only.

    Parameters
    ----------
    *args, **kwargs
        As for `FeatureParty`.
    attacks : Sequence[Attack]
        What it tries.
    transcript : Transcript, optional
        Where it records; by default the last step only.
    simulation : bool
        Whether the audit channel may be opened; a deployment refuses it.
    defended : bool
        Whether the run says that a defense is in force, for the record.
    recorder : Recorder, optional
        Where leak AUCs go.
    every : int
        Score each so many steps.
    """

    def __init__(
        self,
        *args: Any,
        attacks: Sequence[Attack],
        transcript: Transcript | None = None,
        simulation: bool = False,
        defended: bool = False,
        recorder: Recorder | None = None,
        every: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.transcript = transcript or Transcript()
        self._simulation = simulation
        self._recorder = recorder or NoRecorder()
        self._outputs: dict[str, Tensor] = {}
        layers = watched_layers(self.bottom)
        for layer, module in layers.items():
            module.register_forward_hook(self._watch(layer))
        self._audit = AuditLabels(len(self._table.train))
        self._scorer = Scorer(
            attacks,
            ["cut", *layers],
            self._audit,
            party=self.name,
            source="attacker",
            defended=defended,
            recorder=self._recorder,
            every=every,
        )

    def _watch(self, layer: str) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
            if output.requires_grad:
                output.retain_grad()
                self._outputs[layer] = output

        return hook

    def _observe(self, step: int, rows: Rows, embedding: Tensor, gradient: Tensor, frame: Frame) -> None:
        gradients = {"cut": gradient}
        for layer, output in self._outputs.items():
            if output.grad is not None:
                gradients[layer] = output.grad
        self._outputs = {}
        self.transcript.record(StepTrace(step, self._schedule.epoch_of(step), rows, embedding, gradients))
        if self._audit.complete:
            with torch.no_grad():
                self._scorer.score(self.transcript)

    def _other(self, frame: Frame) -> Frame | None:
        if frame.kind is not Kind.AUDIT:
            return super()._other(frame)
        if not self._simulation:
            raise ProtocolError("true labels came over the audit channel; a deployment refuses them")
        offset = frame.integer("offset")
        piece = frame.tensors.get("labels")
        if piece is None or piece.dtype != torch.uint8 or piece.dim() != 1:
            raise ProtocolError("an audit frame carries labels of one byte each")
        self._audit.fill(offset, piece)
        return None

    def report(self) -> dict[str, Any]:
        """Add what the attacks read, where it could be scored."""
        self._recorder.flush()
        leakage = self._scorer.entries() if self._audit.complete else []
        return {**super().report(), "leakage": leakage}

    def state(self) -> dict[str, Any]:
        """Add what was measured so far."""
        audit = torch.from_numpy(self._audit._labels) if self._audit.complete else None
        return {**super().state(), "scores": self._scorer.state(), "audit": audit}

    def restore(self, state: Any) -> None:
        """Go on from what `state` returned."""
        super().restore(state)
        self._scorer.restore(state["scores"])
        if state["audit"] is not None:
            self._audit.fill(0, state["audit"])
