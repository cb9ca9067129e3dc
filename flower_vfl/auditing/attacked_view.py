"""A view of what one party, or several together, receive, with the evaluators of the attacks on it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flower_vfl.attacks.base import Attack, AttackMethod
from flower_vfl.attacks.longitudinal.base import Kept, MemoryAttack
from flower_vfl.auditing.batched_scoring import TOGETHER
from flower_vfl.auditing.evaluator import AttackEvaluator, AuditLabels, Reference
from flower_vfl.auditing.longitudinal import LongitudinalEvaluator, Take
from flower_vfl.auditing.recorder import Recorder
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
        Steps from one scored step to the next; the row memory takes in every step.
    memory : Path, optional
        Folder of the row memory; without one it is in files without a name, gone with the process.
    prefix : str
        Prefix of the names of the values for `recorder`, see `AttackEvaluator`.
    keeps : Iterable[Kept]
        Statistics of the cut in the row memory besides those of the attacks.
    take : Take, optional
        Receives the means of each layer after each epoch.

    Attributes
    ----------
    transcript
        The last step that an attack read.
    history
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
        self.transcript, self._labels, self._schedule = Transcript(), labels, schedule
        shared: dict[str, Any] = {
            "party": party,
            "source": source,
            "defended": defended,
            "recorder": recorder,
            "view": prefix,
        }
        stepwise = [attack for attack in attacks if isinstance(attack, Attack)]
        self._steps = AttackEvaluator(stepwise, layers, labels, every=every, together=TOGETHER, **shared)
        longitudinal = [attack for attack in attacks if isinstance(attack, MemoryAttack)]
        self.history: LongitudinalEvaluator | None = None
        if longitudinal or keeps:
            remembered = layers if longitudinal else ["cut"]
            self.history = LongitudinalEvaluator(
                longitudinal, remembered, labels, schedule, folder=memory, keeps=keeps, take=take, **shared
            )

    def reads(self, step: int) -> bool:
        """Return whether an attack reads this step."""
        return self.history is not None or self._steps.scores(step)

    def observe(self, trace: StepTrace, reference: Reference | None = None) -> None:
        """Let the attacks read a step, with the side information of oracle attacks where there is one.

        Raises
        ------
        ConfigError
            When an attack writes into what it is shown.
        """
        self.transcript.record(trace)
        if not self._labels.complete:
            return
        self._steps.score(self.transcript, reference)
        if self.history is not None:
            self.history.observe(trace.step, trace.rows, trace.gradients)

    @property
    def latest(self) -> float:
        """The largest leak that was last found, by attacks on a step or longitudinal ones."""
        return largest([self._steps.latest, self._longitudinal])

    @property
    def last(self) -> float:
        """The same, with the last step in it."""
        return largest([self._steps.last, self._longitudinal])

    @property
    def epoch_leak(self) -> float:
        """The largest leak over the steps of this epoch, or of longitudinal attacks since the last one."""
        return largest([self._steps.epoch_leak, self._longitudinal])

    @property
    def _longitudinal(self) -> float:
        return math.nan if self.history is None else self.history.latest

    def settle(self) -> None:
        """Write down what attacks on steps read so far."""
        if self._labels.complete:
            self._steps.settle()

    def step_entries(self) -> list[dict[str, Any]]:
        """Return one entry an attack on steps and layer for `result.json`; none where nothing could be scored."""
        return self._steps.entries() if self._labels.complete else []

    def history_entries(self) -> list[dict[str, Any]]:
        """Return the same of longitudinal attacks."""
        return self.history.entries() if self.history is not None and self._labels.complete else []

    def check(self) -> None:
        """Check that the row memory fits the state that was gone back to."""
        if self.history is not None:
            self.history.check()

    def forget(self) -> None:
        """Release the row memory, after the last step."""
        if self.history is not None:
            self.history.forget()

    def state(self) -> dict[str, Any]:
        """Return what was measured so far, as plain values and tensors."""
        return {
            "steps": self._steps.state(),
            "remembered": None if self.history is None else self.history.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._steps.restore(state["steps"])
        if self.history is not None:
            self.history.restore(state["remembered"])


def largest(values: Iterable[float]) -> float:
    """Return the largest of the values that are numbers; NaN where none is."""
    return max((value for value in values if not math.isnan(value)), default=math.nan)
