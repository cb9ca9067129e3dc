"""The reason of a node's failure, and whether it may be temporary."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from flwr.app import Error
from flwr.clientapp.client_app import ClientAppException
from flwr.common.constant import ErrorCode

from flower_vfl.transport.mailbox import passes, reason

SIMULATION = f"{ClientAppException}:<'{ClientAppException('a.csv: row 2 holds abc')}'>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SIMULATION, "a.csv: row 2 holds abc"),
        (str(ClientAppException("it's 'odd'")), "it's 'odd'"),
        (str(ClientAppException("my model needs\nat least 10 columns\n")), "my model needs at least 10 columns"),
        ("ValueError: my model needs\n\n  at least 10 columns", "ValueError: my model needs at least 10 columns"),
        ("Traceback\n  line 3\nValueError: no\n", "ValueError: no"),
        (
            "<class 'flower_vfl.errors.PermissionDeniedError'>:<'party 'a' allows no training'>",
            "PermissionDeniedError: party 'a' allows no training",
        ),
        ("<class 'KeyError'>:<''x''>", "KeyError: 'x'"),
        ("", "error code 7"),
        ("ValueError: \x1b[2Jno", r"ValueError: \x1b[2Jno"),
    ],
)
def test_the_reason_is_the_partys_own_message_without_flowers_wrapping(text, expected):
    assert reason(SimpleNamespace(error=Error(7, text))) == expected


@pytest.mark.parametrize(
    ("text", "temporary"),
    [
        ("<class 'flower_vfl.errors.OutputExistsError'>:<'party 'a': out is in use by process 7'>", True),
        ("FolderInUseError: out is in use by process 7", True),
        ("<class 'flower_vfl.errors.UnreachableError'>:<'the endpoint could not be reached'>", True),
        ("SessionError: the session broke", True),
        ("<class 'flower_vfl.errors.ConfigError'>:<'a SessionError it is not'>", False),
        ("ConfigError: data-path is no prepared data", False),
        ("<class 'KeyError'>:<''x''>", False),
        ("", False),
    ],
)
def test_an_error_is_temporary_only_if_a_connection_or_an_earlier_process_is_the_reason(text, temporary):
    assert passes(SimpleNamespace(error=Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, text))) is temporary
    assert passes(SimpleNamespace(error=Error(ErrorCode.NODE_UNAVAILABLE, text)))
