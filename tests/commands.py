"""Functions that run a flower-vfl command, in this process or, which takes seconds to import, in one of its own."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from unittest import mock

import pytest

from flower_vfl.cli import main

COLUMNS = "200"

NUMBER = re.compile(r"\d+\.\d+")
APART = 0.005
"""Largest relative difference of two numbers: processors round differently, and a training amplifies that."""


def assert_alike(found, shown):
    """Assert that an output is the one that a page shows, up to line ends and last digits."""
    found, shown = (" ".join(text.split()) for text in (found, shown))
    assert NUMBER.sub("#", found) == NUMBER.sub("#", shown)
    assert [float(number) for number in NUMBER.findall(found)] == [
        pytest.approx(float(number), rel=APART, abs=APART) for number in NUMBER.findall(shown)
    ]


def flower_vfl(*arguments):
    """Run a command in this process, and return its exit code and output as `flower_vfl_process` does."""
    out, err = io.StringIO(), io.StringIO()
    with (
        redirect_stdout(out),
        redirect_stderr(err),
        mock.patch.dict(os.environ, COLUMNS=COLUMNS),
        pytest.raises(SystemExit) as ended,
    ):
        main([str(argument) for argument in arguments])
    return subprocess.CompletedProcess(arguments, ended.value.code, out.getvalue(), err.getvalue())


def flower_vfl_process(*arguments):
    """Run a command in a process of its own, and return its exit code and output."""
    return subprocess.run(
        [sys.executable, "-m", "flower_vfl", *map(str, arguments)],
        capture_output=True, text=True, check=False, timeout=250, env={**os.environ, "COLUMNS": COLUMNS},
    )  # fmt: skip
