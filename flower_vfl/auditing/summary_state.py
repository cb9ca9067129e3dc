"""The state of a leak's summary, as plain values and tensors that a checkpoint holds."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from flower_vfl.metrics.summary import LeakSummary

_ARRAYS = {"values": "d", "errors": "d", "nulls": "d", "negatives": "q", "positives": "q"}


def summary_state(summary: LeakSummary) -> dict[str, Any]:
    """Return the collected values of a summary, as plain values and tensors."""
    return {
        **{name: torch.from_numpy(np.array(getattr(summary, name))) for name in _ARRAYS},
        "one_class_steps": summary.one_class_steps,
    }


def restore_summary(summary: LeakSummary, state: Mapping[str, Any]) -> None:
    """Restore the result of `summary_state` into a summary."""
    for name, kind in _ARRAYS.items():
        setattr(summary, name, array(kind, state[name].tolist()))
    summary.one_class_steps = state["one_class_steps"]
