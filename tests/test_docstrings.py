"""The examples in docstrings run and print the results that they show."""

import doctest
import importlib
from pathlib import Path

import pytest

import flower_vfl

PACKAGE = Path(flower_vfl.__file__).parent
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def modules_with_examples():
    """Yield the names of modules with an example; two folders are listed by name, since they may be links."""
    for folder in (PACKAGE, PACKAGE / "strategies", PACKAGE / "simulations"):
        for path in sorted(folder.rglob("*.py")):
            if ">>> " in path.read_text(encoding="utf8"):
                inside = path.relative_to(PACKAGE).with_suffix("")
                yield ".".join(("flower_vfl", *inside.parts)).removesuffix(".__init__")


@pytest.mark.parametrize("name", sorted(set(modules_with_examples())))
def test_examples_are_true(name):
    failed, tried = doctest.testmod(importlib.import_module(name), optionflags=FLAGS)
    assert tried > 0
    assert failed == 0
