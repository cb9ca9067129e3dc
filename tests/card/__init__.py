"""What runs on a card, on a stand-in for one that every machine has; and who needs a real one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch


def needs_card(test: Callable[..., Any]) -> Any:
    """Skip a test where there is no card; `pytest -m card` chooses those that need one."""
    skipped = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    return pytest.mark.card(skipped(test))
