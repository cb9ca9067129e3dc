"""The report of a party at the end of training, and its checks: only checked values are used."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flower_vfl.attacks.base import AttackMethod
from flower_vfl.attacks.embedding.inference import InferenceAttack
from flower_vfl.attacks.joint import JointAttack
from flower_vfl.errors import ProtocolError
from flower_vfl.protocol.frame import Frame

_Unknown = float | None
"""A number, or null where it is unknown."""


class _Checked(BaseModel):
    """Base of the checked parts of a report: more keys are allowed, the named ones have the given types."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class _Measure(_Checked):
    mean: _Unknown
    baseline: _Unknown


class _Leak(_Checked):
    label: str
    metric: str
    phase: Literal["train", "remembered", "inference", "joint"]
    layer: str
    defended: bool
    q95: _Unknown
    q95_null: _Unknown
    q95_turned: _Unknown
    q95_p_value: _Unknown
    max_p_value: _Unknown = None
    steps_read: int | None = None
    steps_read_max: _Unknown = None
    mean: _Unknown
    max: _Unknown
    detection_error_mean: _Unknown
    detection_error_q05: _Unknown
    baseline: _Unknown
    advantage: _Unknown
    measures: dict[str, _Measure] = {}
    epochs: list[int] = []
    values: list[float] = []
    p_value: _Unknown = None
    advantage_p_value: _Unknown = None
    interval95: Annotated[list[float], Field(min_length=2, max_length=2)] | None = None
    advantage_interval95: Annotated[list[float], Field(min_length=2, max_length=2)] | None = None
    baselines: dict[str, _Unknown] = {}


class _Report(_Checked):
    weights: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
    leakage: list[_Leak] = []


def read_report(party: str, frame: Frame, attacks: Sequence[AttackMethod]) -> dict[str, Any]:
    """Return the checked report of a party.

    Parameters
    ----------
    party : str
        The party's name.
    frame : Frame
        The report.
    attacks : Sequence[AttackMethod]
        Attacks that the party scores with true labels. A party without true labels cannot measure a leak: its entries
        are left out.

    Returns
    -------
    dict
        Report with ``weights``, the digest of the kept weights ("" for none), and ``leakage``, entries of
        `result.json`. The label party sets their party, source, attack and parameters by itself.

    Raises
    ------
    ProtocolError
        When the report cannot be read, or has results of other attacks.
    """
    found = frame.tensors.get("report")
    try:
        report = json.loads(found.numpy().tobytes()) if found is not None and found.dtype is torch.uint8 else None
    except (ValueError, RecursionError):
        report = None
    if not isinstance(report, dict):
        raise ProtocolError(f"party {party!r} sent a report that cannot be read")
    report = {**report, "leakage": report.get("leakage", []) if attacks else []}
    try:
        _Report.model_validate(report)
    except ValidationError as error:
        wrong = error.errors()[0]
        where = ".".join(map(str, wrong["loc"]))
        raise ProtocolError(f"party {party!r} sent an invalid report; field {where!r:.100}: {wrong['msg']}") from None
    known = {attack.label: attack for attack in attacks}
    return {**report, "leakage": [_attributed(entry, party, known) for entry in report["leakage"]]}


def _attributed(entry: dict[str, Any], party: str, known: dict[str, AttackMethod]) -> dict[str, Any]:
    attack = known.get(entry["label"])
    if attack is None:
        raise ProtocolError(f"party {party!r} reports of the attack {entry['label']!r:.100}, which is none of this run")
    own = {"attack": attack.name, "params": attack.params, "source": "attacker", "party": party}
    known_labels = {"known": attack.leaks} if isinstance(attack, InferenceAttack | JointAttack) else {}
    return {**{key: value for key, value in entry.items() if key != "known"}, **own, **known_labels}
