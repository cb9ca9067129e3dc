"""Tests of runs on a GPU: on a stand-in that works on every machine, and on a real one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch


def needs_card(test: Callable[..., Any]) -> Any:
    """Skip a test on machines without a GPU; `pytest -m card` selects the tests that need one."""
    skipped = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    return pytest.mark.card(skipped(test))
