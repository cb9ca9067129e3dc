"""The state of a leak's summary, as plain values and tensors that a checkpoint holds."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from flower_vfl.metrics.summary import LeakSummary

_ARRAYS = ("values", "errors", "nulls")


def summary_state(summary: LeakSummary) -> dict[str, Any]:
    """Return the collected values of a summary, as plain values and tensors."""
    counts = [[n, p, times] for (n, p), times in summary.class_counts.items()]
    return {
        **{name: torch.from_numpy(np.array(getattr(summary, name))) for name in _ARRAYS},
        "one_class_steps": summary.one_class_steps,
        "class_counts": torch.tensor(counts, dtype=torch.int64).reshape(-1, 3),
    }


def restore_summary(summary: LeakSummary, state: Mapping[str, Any]) -> None:
    """Restore the result of `summary_state` into a summary."""
    for name in _ARRAYS:
        setattr(summary, name, array("d", state[name].tolist()))
    summary.one_class_steps = state["one_class_steps"]
    summary.class_counts = Counter({(n, p): times for n, p, times in state["class_counts"].tolist()})
