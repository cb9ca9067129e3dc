"""An attacker: an observer that runs attacks on a feature party's messages; the party follows the protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from flower_vfl.attacks.base import AttackMethod
from flower_vfl.attacks.embedding.inference import InferenceAttack
from flower_vfl.attacks.joint import JointAttack
from flower_vfl.attacks.longitudinal.base import Memory
from flower_vfl.auditing.attacked_view import AttackedView
from flower_vfl.auditing.audit_labels import AuditLabels
from flower_vfl.auditing.evaluator import Reference
from flower_vfl.auditing.joint_view import JointObserver
from flower_vfl.auditing.read_only import read_only
from flower_vfl.auditing.recorder import NoRecorder, Recorder
from flower_vfl.auditing.trained_model import FreshModels, TrainedModel, TrainedModelEvaluator
from flower_vfl.errors import ConfigError, ProtocolError, suggestion
from flower_vfl.nn.layers import watched_layers
from flower_vfl.parties.observation import Observation, ObservationPoint, PartyObserver
from flower_vfl.protocol.frame import Frame, Kind
from flower_vfl.protocol.schedule import Rows
from flower_vfl.protocol.transcript import StepTrace

AUDIT_REFERENCE, AUDIT_ROW = "audit.reference", "audit.row"
"""In a simulation, the names of the tensor (D,) and the field of a step's frame with a clean gradient and its row."""


class _WatchedTensors:
    """The outputs and gradients of the watched layers in the current step.

    The hooks refer to this object and not to the attacker: a cycle of references through the model would keep the
    attacker and its open data alive after the run.
    """

    def __init__(self) -> None:
        self.active = True
        """True if an attack reads this step; tensors of other steps are not held, which would cost time."""
        self.outputs: dict[str, Tensor] = {}
        self.gradients: dict[str, Tensor] = {}

    def watch(self, layer: str) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if self.active and isinstance(output, Tensor) and output.requires_grad:
                output.register_hook(keep)  # type: ignore[no-untyped-call] # `retain_grad` would copy it
                self.outputs[layer] = output

        def keep(gradient: Tensor) -> None:
            self.gradients[layer] = gradient

        return hook


class Attacker(PartyObserver):
    """An observer of a feature party that attacks the gradients that the party receives.

    It records a transcript: cut gradients, and the gradients of the party's own earlier layers, from the party's
    backward pass. In a simulation a scorer beside it compares the attacks' scores with true labels that come over the
    audit channel, and gives oracle attacks the clean gradient of one positive that arrives the same way; the attacks
    themselves see the transcript and the side information that they declare. Longitudinal attacks read, after each
    epoch, the row memory. Once training is finished, attacks on the trained model read the test rows, and joint attacks
    read gradients together with columns and embeddings; their scores are compared in the same way.

    Parameters
    ----------
    point : ObservationPoint
        The observation point of the party.
    attacks : Sequence[AttackMethod]
        The attacks that it runs.
    fresh : FreshModels, optional
        The factories of its own models; attacks on the trained model need them.
    layers : Sequence[str]
        The attacked layers: "cut", a watched layer of the model or any of its modules by name; by default the cut and
        all watched layers.
    simulation : bool
        True if the audit channel may be opened; a deployment refuses it.
    defended : bool
        True if a defense is in force by the run's configuration; entries of the result state it.
    recorder : Recorder, optional
        Recorder of leak AUCs.
    every : int
        Steps from one scored step to the next; the row memory takes in every step.
    positives : Sequence[int]
        Classes that attacks on gradients detect, see `AuditLabels`.
    memory : Path, optional
        Folder of the row memory; without one, the memory ends with the process.

    Attributes
    ----------
    view
        The transcript, and the evaluators of attacks on it.
    """

    def __init__(
        self,
        point: ObservationPoint,
        *,
        attacks: Sequence[AttackMethod],
        fresh: FreshModels | None = None,
        layers: Sequence[str] = (),
        simulation: bool = False,
        defended: bool = False,
        recorder: Recorder | None = None,
        every: int = 1,
        positives: Sequence[int] = (),
        memory: Path | None = None,
    ) -> None:
        self._point, self._placement = point, point.placement
        self._simulation, self._defended, self._fresh = simulation, defended, fresh
        self._trained_attacks = [attack for attack in attacks if isinstance(attack, InferenceAttack)]
        self._recorder = recorder or NoRecorder()
        self._tensors = _WatchedTensors()
        self._reference: tuple[int, Tensor] | None = None
        self._references: Reference | None = None
        self._received_clean = False
        watched = chosen_layers(point.bottom, layers, point.party)
        self._watched = watched.keys()
        self._changed = False
        """True if a received gradient was not the clean one: then a defense is in force."""
        self._rows_independent: bool | None = None
        self._has_side_effects = False
        for layer, module in watched.items():
            module.register_forward_hook(self._tensors.watch(layer))
        self._layers = {layer: watched.get(layer) for layer in layers or ["cut", *watched]}
        self._audit = AuditLabels(len(point.table.train), positives=positives)
        self._test_audit = AuditLabels(len(point.table.test))
        self._joint = self._joint_observer(attacks)
        self.view = AttackedView(
            attacks,
            list(self._layers),
            self._audit,
            point.schedule,
            party=point.party,
            source="attacker",
            defended=defended,
            recorder=self._recorder,
            every=every,
            memory=memory,
            keeps=() if self._joint is None else ("mean",),
            take=None if self._joint is None else self._take,
        )

    def _joint_observer(self, attacks: Sequence[AttackMethod]) -> JointObserver | None:
        joint = [attack for attack in attacks if isinstance(attack, JointAttack)]
        if not joint:
            return None
        return JointObserver(
            *(joint, self._point.table, self._audit, self._test_audit, self._point.schedule),
            party=self._point.party,
            defended=self._defended,
            placement=self._placement,
            seed=self._fresh.seed("joint") if self._fresh is not None else 0,
        )

    def _take(self, layer: str, epoch: int, memory: Memory) -> None:
        if self._joint is not None and layer == "cut":
            self._joint.take(epoch, memory)

    def begin_step(self, step: int) -> None:
        """Hold the tensors of the watched layers if an attack reads this step."""
        self._tensors.active = self.view.reads(step)

    def before_backward(self, observation: Observation) -> None:
        """Read the clean gradient for oracle attacks, if there is one, and propagate it to the watched layers."""
        self._reference, self._references = self._read_reference(observation), None
        self._received_clean = False
        # To propagate is correct for any gradient: after the first changed one, no comparison waits for the GPU.
        if self._reference is not None and not self._changed:
            self._received_clean = _holds(observation.gradient, *self._reference)
            self._changed = not self._received_clean
        self._follow(observation.rows, observation.output)

    def _read_reference(self, observation: Observation) -> tuple[int, Tensor] | None:
        """Return the row of the known positive and its clean cut gradient (D,); None where the frame has none."""
        frame, gradient = observation.frame, observation.gradient
        if not any(name.startswith("audit.") for name in (*frame.tensors, *frame.fields)):
            return None
        if not self._simulation:
            raise ProtocolError("a clean gradient came over the audit channel; a deployment refuses it")
        clean = frame.tensor(AUDIT_REFERENCE, shape=(prod(gradient.shape[1:]),), dtype=gradient.dtype)
        row = frame.integer(AUDIT_ROW)
        if not 0 <= row < len(observation.rows):
            raise ProtocolError(f"the clean gradient of row {row} came, the batch has {len(observation.rows)}")
        return row, clean.to(gradient.device)

    def _follow(self, rows: Rows, output: Tensor) -> None:
        """Propagate the clean cut gradient of one row through the party's own model, to the watched layers.

        No real attacker can do this; it is an oracle's side information. The weights and the recorded tensors of the
        step stay the same bit for bit. Where the received gradient is the clean one, the step's own backward pass
        does the work.
        """
        if self._reference is None or self._received_clean:
            return
        row, clean = self._reference
        if not self._watched:
            self._references = Reference(row, {"cut": clean})
            return
        found = self._follow_alone(rows[[row, row]], output[row].detach(), clean)
        if found is None:
            found = self._follow_among(row, output, clean)
        self._references = Reference(row, {"cut": clean, **found})

    def _follow_alone(self, rows: Rows, expected: Tensor, clean: Tensor) -> dict[str, Tensor] | None:
        """Return the layers' clean gradients by a pass of that row alone; None where its embedding then is another one.

        The pass has the row twice, because a model need not accept a single row; each was tried with two at the start.
        """
        if self._rows_independent is False:
            return None
        of_batch, self._tensors.outputs = self._tensors.outputs, {}
        inputs = self._placement.bring_all(self._point.table.train.gather(rows))
        output = (
            self._placement.forward(self._point.bottom, *inputs) if self._rows_independent else self._dry_run(inputs)
        )
        alone, self._tensors.outputs = self._tensors.outputs, of_batch
        apart, size = (output.detach()[0] - expected).abs(), expected.abs()
        same = bool((apart <= self._placement.rounding * (size + 0.1 * size.max())).all())
        self._rows_independent = same and not self._has_side_effects
        if not self._rows_independent:
            return None
        found = torch.autograd.grad(output[0], list(alone.values()), clean.view_as(expected), allow_unused=True)
        return {layer: g[0].flatten() for layer, g in zip(alone, found, strict=True) if g is not None}

    def _dry_run(self, inputs: list[Tensor]) -> Tensor:
        """Return the output of a first pass without side effects, and detect if it would have had any."""
        bottom, dropout = self._point.bottom, self._point.dropout
        copies = {name: buffer.clone() for name, buffer in bottom.named_buffers()}
        drawn = None if dropout is None else dropout.get_state()
        with torch.random.fork_rng(devices=[self._placement.device] if self._placement.on_gpu else []):
            output = self._placement.forward(partial(functional_call, bottom, copies), tuple(inputs))
        if any(not torch.equal(copies[name], buffer) for name, buffer in bottom.named_buffers()):
            self._has_side_effects = True
        if dropout is not None and drawn is not None and not torch.equal(drawn, dropout.get_state()):
            dropout.set_state(drawn)
            self._has_side_effects = True
        return output

    def _follow_among(self, row: int, output: Tensor, clean: Tensor) -> dict[str, Tensor]:
        """Return the layers' clean gradients by the batch's graph, before the step's backward pass frees the graph."""
        seed = torch.zeros_like(output)
        seed[row] = clean.view_as(output[row])
        watched = self._tensors.outputs
        found = torch.autograd.grad(output, list(watched.values()), seed, retain_graph=True, allow_unused=True)
        return {layer: g[row].flatten() for layer, g in zip(watched, found, strict=True) if g is not None}

    def after_backward(self, observation: Observation) -> None:
        """Record the step if an attack reads it, and attack it once all true labels are there."""
        step, rows = observation.step, observation.rows
        if not self.view.reads(step):
            return
        gradients = {"cut": observation.gradient, **self._tensors.gradients}
        outputs = {layer: output.detach() for layer, output in self._tensors.outputs.items()}
        self._tensors.outputs, self._tensors.gradients = {}, {}
        missing = self._watched - gradients.keys()
        if missing:
            raise ConfigError(
                f"party {self._point.party!r} gets no gradient at {', '.join(sorted(missing))}: watch "
                "modules whose output is one tensor on the way to the embedding (attack.layers)"
            )
        if self._reference is not None and self._received_clean:
            row, _ = self._reference
            self._references = Reference(row, {layer: g[row].flatten() for layer, g in gradients.items()})
        epoch, embedding = self._point.schedule.epoch_of(step), observation.output.detach()
        with torch.no_grad():
            self.view.observe(StepTrace(step, epoch, read_only(rows), embedding, gradients, outputs), self._references)

    def answer(self, frame: Frame) -> Frame | None:
        """Take in true labels for scoring from the audit channel; return None for other frames."""
        if frame.kind is not Kind.AUDIT:
            return None
        if not self._simulation:
            raise ProtocolError("true labels came over the audit channel; a deployment refuses them")
        offset = frame.integer("offset")
        piece = frame.tensors.get("labels")
        if piece is None or piece.dtype != torch.uint8 or piece.dim() != 1:
            raise ProtocolError("an audit frame carries labels of one byte each")
        audit = self._test_audit if frame.fields.get("table") == "test" else self._audit
        audit.fill(offset, piece, classes=frame.integer("classes"))
        return Frame(Kind.AUDITED, frame.step)

    def check(self) -> None:
        """Check the row memory against a state that was restored."""
        self.view.check()

    def forget(self) -> None:
        """Release the row memory."""
        self.view.forget()

    def settle(self) -> None:
        """Score the pending steps and record the values."""
        self.view.settle()
        self._recorder.flush()

    def report(self, steps: int, *, trained: bool) -> dict[str, Any]:
        """Attack the trained model, and return the entries of all attacks that could be scored."""
        self.settle()
        leakage = [*self.view.step_entries(), *self.view.longitudinal_entries()]
        if trained:
            leakage += [*self._joint_entries(), *self._trained_model_entries(steps)]
        return {"leakage": leakage}

    def _joint_entries(self) -> list[dict[str, Any]]:
        """Run the joint attacks and return their entries; none without the true labels."""
        longitudinal = self.view.longitudinal
        if self._joint is None or longitudinal is None or not self._audit.complete:
            return []
        if not self._joint.taken and self._joint.epoch:  # taken by another process, or before a checkpoint
            memory = longitudinal.again("cut", self._joint.epoch)
            if memory is not None:
                self._joint.take(self._joint.epoch, memory)
        return self._joint.entries(self._point.bottom, longitudinal.unread.get("cut", ""))

    def _trained_model_entries(self, steps: int) -> list[dict[str, Any]]:
        """Run the attacks on the trained model and return their entries; none without true labels of the test rows."""
        labels = self._test_audit.numbers
        if not (self._trained_attacks and self._fresh and self._test_audit.complete and len(labels)):
            return []
        scorer = TrainedModelEvaluator(
            labels,
            self._test_audit.classes,
            party=self._point.party,
            source="attacker",
            defended=self._defended,
            recorder=self._recorder,
            step=steps,
            epoch=self._point.schedule.epoch_of(max(steps - 1, 0)),
        )
        model = TrainedModel(
            self._point.bottom,
            self._point.table,
            self._audit.numbers,
            self._test_audit.classes,
            self._fresh,
            placement=self._placement,
        )
        return model.entries(self._trained_attacks, self._layers, scorer)

    def state(self) -> dict[str, Any]:
        """Return the measurements so far, with the true labels."""
        audits = {
            name: torch.from_numpy(audit.numbers) if audit.complete else None
            for name, audit in (("audit", self._audit), ("test_audit", self._test_audit))
        }
        joint = None if self._joint is None else self._joint.state()
        more = {"joint": joint, "classes": self._audit.classes, "changed": self._changed}
        return {**self.view.state(), **audits, **more}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`."""
        self.view.restore(state)
        self._changed = state["changed"]
        if self._joint is not None:
            self._joint.restore(state["joint"])
        for name, audit in (("audit", self._audit), ("test_audit", self._test_audit)):
            if state[name] is not None and not audit.complete:
                audit.fill(0, state[name], classes=state["classes"])


def chosen_layers(bottom: nn.Module, layers: Sequence[str], party: str) -> dict[str, nn.Module]:
    """Return the attacked modules of a bottom model, by the name of the layer.

    Raises
    ------
    ConfigError
        When `layers` names a layer that the party's model does not have.
    """
    watched = watched_layers(bottom)
    if not layers:
        return watched
    known = {**{name: module for name, module in bottom.named_modules() if name}, **watched}
    for layer in layers:
        if layer != "cut" and layer not in known:
            raise ConfigError(
                f"attack.layers names {layer!r}, which the model of party {party!r} does not have; "
                f"{suggestion(layer, ['cut', *known])}"
            )
    return {layer: known[layer] for layer in layers if layer != "cut"}


def _holds(gradient: Tensor, row: int, clean: Tensor) -> bool:
    """Return True if that row of a received gradient (B, ...) is the clean one (D,): then no defense changed it."""
    return torch.equal(gradient[row].flatten(), clean)
