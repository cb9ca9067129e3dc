"""What a node's failure is called."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from flwr.app import Error
from flwr.clientapp.client_app import ClientAppException

from flower_vfl.transport.mailbox import reason

SIMULATION = f"{ClientAppException}:<'{ClientAppException('a.csv: row 2 holds abc')}'>"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (SIMULATION, "a.csv: row 2 holds abc"),
        (str(ClientAppException("it's 'odd'")), "it's 'odd'"),
        ("Traceback\n  line 3\nValueError: no\n", "ValueError: no"),
        ("", "error code 7"),
    ],
)
def test_the_reason_is_the_partys_own_words_without_flowers_frame(given, said):
    assert reason(SimpleNamespace(error=Error(7, given))) == said
