"""One message across the cut, and its form as a Flower `RecordDict`.

Down (label party to feature party) go `PRETRAIN` (train by your own columns for a while), `STEP` (the gradient of one
step and the request for another, fused to one round trip), `EVALUATE`, `SAVE` and `RESTORE` (keep your state of this
step, go back to it), `BEST` (copy your weights, this epoch was the best so far; not answered), `KEEP` (the model of
this step is the one that stays; -1: none does), `AUDIT` (simulations only), `FINISH` and `EXPORTED` (a finished
training's results are written: nobody goes back any more; not answered); of a finished training `PREDICT`. Up go
`HELLO`, `PRETRAINED` (a sign of life: how many steps are done), `EMBEDDING`, `SAVED`, `RESTORED`, `KEPT`, `AUDITED`,
`REPORT` and `ERROR`.
Where the pipeline depth is to be chosen, `REHEARSE` asks for the time of a step (or, without tensors, of a round trip),
`REHEARSED` answers and `IN_FLIGHT` carries the choice. `ALIGN` goes both ways, before any training.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from flower_vfl.errors import NotFiniteError, ProtocolError
from flower_vfl.protocol import strict_json

if TYPE_CHECKING:
    import torch
    from torch import Tensor

VERSION = 3
"""Version of the header; a peer with another one is refused."""

Scalar = str | int | float | bool
_HEADER, _TENSORS = "header", "tensors"
_MAX_STEP = 2**53


class Kind(StrEnum):
    """The kind of a frame."""

    HELLO = "hello"
    PRETRAIN = "pretrain"
    PRETRAINED = "pretrained"
    STEP = "step"
    EVALUATE = "evaluate"
    PREDICT = "predict"
    EMBEDDING = "embedding"
    SAVE = "save"
    SAVED = "saved"
    RESTORE = "restore"
    RESTORED = "restored"
    BEST = "best"
    KEEP = "keep"
    KEPT = "kept"
    REHEARSE = "rehearse"
    REHEARSED = "rehearsed"
    IN_FLIGHT = "in_flight"
    AUDIT = "audit"
    AUDITED = "audited"
    FINISH = "finish"
    REPORT = "report"
    EXPORTED = "exported"
    ERROR = "error"
    ALIGN = "align"


@dataclass(frozen=True, slots=True)
class Frame:
    """One message across the cut.

    Parameters
    ----------
    kind : Kind
        Its purpose.
    step : int
        The step (or evaluation batch) that it asks for or answers; -1 for none.
    fields : Mapping[str, str | int | float | bool]
        Small values, e.g. the step of the carried gradient.
    tensors : Mapping[str, Tensor]
        Named tensors, (B, ...) each.
    """

    kind: Kind
    step: int = -1
    fields: Mapping[str, Scalar] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def integer(self, name: str) -> int:
        """Return the integer field `name`; ProtocolError when it is missing or no integer."""
        value = self.fields.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ProtocolError(f"a {self.kind} frame needs the integer field {name!r}, given {value!r}")
        return value

    def text(self, name: str) -> str:
        """Return the text field `name`; ProtocolError when it is missing or no text."""
        value = self.fields.get(name)
        if not isinstance(value, str):
            raise ProtocolError(f"a {self.kind} frame needs the text field {name!r}, given {value!r}")
        return value

    def tensor(self, name: str, *, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return tensor `name` after checking shape, dtype and finiteness.

        Raises
        ------
        ProtocolError
            Naming the expected and the received tensor.
        NotFiniteError
            When a value is not finite.
        """
        from flower_vfl.protocol.tensors import DTYPE_NAMES, is_finite

        found = self.tensors.get(name)
        if found is None:
            raise ProtocolError(
                f"a {self.kind} frame of step {self.step} needs the tensor {name!r}; it has {sorted(self.tensors)}"
            )
        if found.dtype != dtype or tuple(found.shape) != shape:
            raise ProtocolError(
                f"{name!r} of step {self.step} must be {DTYPE_NAMES.get(dtype, dtype)} {shape}, "
                f"given {DTYPE_NAMES.get(found.dtype, found.dtype)} {tuple(found.shape)}"
            )
        if found.is_floating_point() and not is_finite(found):
            raise NotFiniteError(f"{name!r} of step {self.step} holds values that are not finite")
        return found


def to_records(frame: Frame, session: str) -> RecordDict:
    """Write a frame of `session` as a Flower `RecordDict`: a `ConfigRecord` header and an `ArrayRecord`."""
    header = {
        "version": VERSION,
        "kind": str(frame.kind),
        "session": session,
        "step": frame.step,
        "fields": json.dumps(dict(frame.fields), allow_nan=False),
    }
    arrays = _to_arrays(frame.tensors) if frame.tensors else {}
    return RecordDict({_HEADER: ConfigRecord(header), _TENSORS: ArrayRecord(arrays)})  # type: ignore[arg-type]


def from_records(records: RecordDict, session: str) -> Frame:
    """Read a frame, refusing whatever is not one of this version and of this `session`.

    Raises
    ------
    ProtocolError
        Naming the first thing that is wrong.
    """
    header, arrays = records.get(_HEADER), records.get(_TENSORS)
    if not isinstance(header, ConfigRecord) or not isinstance(arrays, ArrayRecord) or len(records) != 2:
        raise ProtocolError(f"a frame holds a header and tensors, given {sorted(records)}")
    if header.get("version") != VERSION:
        raise ProtocolError(
            f"the peer speaks protocol version {header.get('version')!r}, this is version {VERSION}; install the same "
            "flower-vfl on both hosts"
        )
    if header.get("session") != session:
        raise ProtocolError("the frame belongs to another session")
    step = header.get("step")
    if not isinstance(step, int) or isinstance(step, bool) or not -1 <= step <= _MAX_STEP:
        raise ProtocolError(f"the frame has the impossible step {step!r}")
    try:
        kind = Kind(str(header.get("kind")))
        fields = strict_json.loads(str(header.get("fields")))
    except ValueError:
        raise ProtocolError(f"the frame has an unknown kind ({header.get('kind')!r}) or broken fields") from None
    if not isinstance(fields, dict) or not all(isinstance(value, Scalar) for value in fields.values()):
        raise ProtocolError("the fields of a frame are plain values by name")
    return Frame(kind, step, fields, _from_arrays(arrays) if arrays else {})


def _to_arrays(tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    from flower_vfl.protocol.tensors import to_array

    return {name: to_array(tensor) for name, tensor in tensors.items()}


def _from_arrays(arrays: Mapping[str, Array]) -> dict[str, Tensor]:
    from flower_vfl.protocol.tensors import from_array

    return {name: from_array(name, array) for name, array in arrays.items()}
