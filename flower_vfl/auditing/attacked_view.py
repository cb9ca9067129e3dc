"""A view of the messages to one party or colluding group, with the evaluators of the attacks on it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flower_vfl.attacks.base import Attack, AttackMethod, RowAttack, whole
from flower_vfl.attacks.longitudinal.base import Kept, MemoryAttack
from flower_vfl.auditing.audit_labels import AuditLabels
from flower_vfl.auditing.batched_scoring import STEPS_AT_ONCE
from flower_vfl.auditing.evaluator import AttackEvaluator, Reference
from flower_vfl.auditing.longitudinal import LongitudinalEvaluator, Take
from flower_vfl.auditing.recorder import Recorder
from flower_vfl.errors import ConfigError
from flower_vfl.protocol.schedule import Schedule
from flower_vfl.protocol.transcript import StepTrace, Transcript


class AttackedView:
    """A view with its transcript, the evaluator of attacks on steps and, if there are some, that of longitudinal ones.

    Parameters
    ----------
    attacks : Sequence[AttackMethod]
        The attacks that are run; of these, the view scores attacks on steps and longitudinal attacks.
    layers : Sequence[str]
        The attacked layers.
    labels : AuditLabels
        The true labels; attacks are scored once they are complete.
    schedule : Schedule
        Gives the rows of each step, and the end of each epoch.
    party : str
        The feature party, or a colluding group such as "a+b".
    source : str
        "attacker" or "monitor".
    defended : bool
        True if any defense is in force.
    recorder : Recorder
        Recorder of all values.
    every : int
        Steps from one scored step to the next; the row memory, and a transcript of several steps, take in every step.
    memory : Path, optional
        Folder of the row memory; without one, the memory ends with the process.
    prefix : str
        Prefix of the metrics' names in `recorder`, see `AttackEvaluator`.
    keeps : Iterable[Kept]
        Statistics of the cut in the row memory besides those of the attacks.
    take : Take, optional
        Function that receives the row memory of each layer after each epoch.

    Attributes
    ----------
    transcript
        The transcript, with as many steps as the attack with the longest `history` reads.
    longitudinal
        The evaluator of longitudinal attacks, with the row memory; None where nothing needs it.
    """

    def __init__(
        self,
        attacks: Sequence[AttackMethod],
        layers: Sequence[str],
        labels: AuditLabels,
        schedule: Schedule,
        *,
        party: str,
        source: str,
        defended: bool,
        recorder: Recorder,
        every: int,
        memory: Path | None = None,
        prefix: str = "",
        keeps: Iterable[Kept] = (),
        take: Take | None = None,
    ) -> None:
        stepwise = [attack for attack in attacks if isinstance(attack, Attack)]
        self._read_steps = max((_history(attack) for attack in stepwise), default=1)
        self.transcript, self._labels = Transcript(self._read_steps), labels
        shared: dict[str, Any] = {
            "party": party,
            "source": source,
            "defended": defended,
            "recorder": recorder,
            "view": prefix,
        }
        self._steps = AttackEvaluator(
            *(stepwise, layers, labels),
            every=every,
            together=STEPS_AT_ONCE,
            held_out=schedule.held_out,
            **shared,
        )
        on_rows = [attack for attack in attacks if isinstance(attack, MemoryAttack)]
        self.longitudinal: LongitudinalEvaluator | None = None
        if on_rows or keeps:
            memory_layers = layers if on_rows else ["cut"]
            self.longitudinal = LongitudinalEvaluator(
                on_rows, memory_layers, labels, schedule, folder=memory, keeps=keeps, take=take, **shared
            )

    def reads(self, step: int) -> bool:
        """Return True if an attack reads this step."""
        return self.longitudinal is not None or self._read_steps > 1 or self._steps.scores(step)

    def observe(self, trace: StepTrace, reference: Reference | None = None) -> None:
        """Run the attacks on a step, with the side information of oracle attacks where there is one.

        Raises
        ------
        ConfigError
            When an attack writes into its inputs.
        """
        self.transcript.record(trace)
        if not self._labels.complete:
            return
        self._steps.score(self.transcript, reference)
        if self.longitudinal is not None:
            self.longitudinal.observe(trace.step, trace.rows, trace.gradients)

    @property
    def latest(self) -> float:
        """The largest leak of attacks on the last compared step, without pending ones, and of longitudinal attacks."""
        return largest([self._steps.latest, self._longitudinal_leak])

    @property
    def epoch_leak(self) -> float:
        """The largest leak of attacks on the steps of this epoch, and of longitudinal attacks after the last epoch."""
        return largest([self._steps.epoch_leak, self._longitudinal_leak])

    @property
    def _longitudinal_leak(self) -> float:
        return math.nan if self.longitudinal is None else self.longitudinal.latest

    def settle(self) -> None:
        """Score the pending steps and record the values."""
        if self._labels.complete:
            self._steps.settle()

    def step_entries(self) -> list[dict[str, Any]]:
        """Return the entries of attacks on steps for `result.json`; none where nothing could be scored."""
        return self._steps.entries() if self._labels.complete else []

    def longitudinal_entries(self) -> list[dict[str, Any]]:
        """Return the entries of longitudinal attacks for `result.json`; none where nothing could be scored."""
        return self.longitudinal.entries() if self.longitudinal is not None and self._labels.complete else []

    def check(self) -> None:
        """Check the row memory against the restored state."""
        if self.longitudinal is not None:
            self.longitudinal.check()

    def forget(self) -> None:
        """Release the row memory, after the last step."""
        if self.longitudinal is not None:
            self.longitudinal.forget()

    def state(self) -> dict[str, Any]:
        """Return the measurements so far, as plain values and tensors."""
        return {
            "steps": self._steps.state(),
            "transcript": self.transcript.state() if self._read_steps > 1 else [],
            "remembered": None if self.longitudinal is None else self.longitudinal.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`."""
        self._steps.restore(state["steps"])
        self.transcript.restore(state["transcript"])
        if self.longitudinal is not None:
            self.longitudinal.restore(state["remembered"])


def _history(attack: Attack) -> int:
    """Return the number of steps that an attack reads.

    Raises
    ------
    ConfigError
        When it is not a whole number from 1, or more than 1 for a `RowAttack`.
    """
    steps = whole(attack.name, "history", attack.history)
    if steps > 1 and isinstance(attack, RowAttack):
        raise ConfigError(f"{attack.name}: history is {steps}, but a RowAttack reads one step; derive it from Attack")
    return steps


def largest(values: Iterable[float]) -> float:
    """Return the largest of the values that are not NaN; NaN without any."""
    return max((value for value in values if not math.isnan(value)), default=math.nan)
