"""Parametrized tests of which only the first cases belong to the default run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable


def parametrize(
    names: str | tuple[str, ...], values: Iterable[Any], *, quick: int, **more: Any
) -> pytest.MarkDecorator:
    """Return ``pytest.mark.parametrize`` of which the cases after the first ``quick`` ones are slow."""
    several = not isinstance(names, str) or "," in names
    cases = []
    for position, value in enumerate(values):
        marks = [pytest.mark.slow] * (position >= quick)
        if hasattr(value, "marks"):
            cases.append(pytest.param(*value.values, marks=[*value.marks, *marks], id=value.id))
        else:
            cases.append(pytest.param(*(value if several else [value]), marks=marks))
    return pytest.mark.parametrize(names, cases, **more)
