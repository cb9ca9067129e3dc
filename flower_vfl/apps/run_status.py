"""`flower-vfl wait`: follow a run at a SuperLink until it ends, and fail if the run failed.

`flwr run` exits with 0 however the run ends, and shows no error of a ServerApp that is killed. The SuperLink marks a
run as failed that sends no heartbeat any more (Flower 1.41: for about 50 seconds).
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import click
import httpx
from flwr.cli.flower_config import read_superlink_connection
from flwr.cli.utils import init_http_client_from_connection
from flwr.proto.control_pb2 import ListRunsRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import ApiErrorCode, FlowerError

from flower_vfl.errors import ConfigError, RunStoppedError, SessionError
from flower_vfl.protocol.printable import printable

_log = logging.getLogger(__name__)

POLL_SECONDS = 5.0
PATIENCE_SECONDS = 120.0
"""Seconds without an answer from a SuperLink that answered before, as while it restarts."""

RUN_VARIABLE, REASON_VARIABLE = "FLOWER_VFL_RUN", "FLOWER_VFL_REASON"
"""Environment variables of the command that is run on a failure."""

_HOOK_SECONDS = 60.0
_NO_HEARTBEAT = "No heartbeat received"
_MOST_IDS = 2**64


@dataclass(frozen=True)
class RunState:
    """The status of a run at a SuperLink.

    Attributes
    ----------
    status : str
        "pending", "starting", "running" or "finished".
    outcome : str
        Of a finished run: "completed", "failed" or "stopped".
    details : str
        Reason of the outcome, in Flower's or the ServerApp's words.
    """

    status: str
    outcome: str = ""
    details: str = ""


class SuperLinkUnreachableError(SessionError):
    """A SuperLink that does not answer."""


class ControlApi:
    """The Control API of a SuperLink, as `flwr list` uses it.

    Parameters
    ----------
    name : str or None
        Name of the SuperLink in Flower's configuration; None for Flower's default one.

    Raises
    ------
    ConfigError
        When the configuration has no such SuperLink, or its entry cannot be used.
    """

    def __init__(self, name: str | None) -> None:
        self.name = name
        try:
            connection = read_superlink_connection(name)
            self._client: ControlHttpClient = init_http_client_from_connection(connection)
        except (click.ClickException, OSError, ValueError) as error:
            words = error.message if isinstance(error, click.ClickException) else str(error)
            raise ConfigError(f"the SuperLink {name or '(default)'} cannot be asked: {words}") from None
        self.address = str(connection.address)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def state(self, run_id: int) -> RunState | None:
        """Return the status of a run; None where the SuperLink has no such run.

        Raises
        ------
        SuperLinkUnreachableError
            When it does not answer, or a proxy answers in its place.
        SessionError
            When it refuses the request.
        """
        try:
            answer = self._client.ListRuns(ListRunsRequest(run_id=run_id))
        except httpx.HTTPStatusError as error:
            found = FlowerError.from_json(error.response.text)
            if found is not None and found.code == ApiErrorCode.RUN_ID_NOT_FOUND:
                return None
            words = found.message if found is not None else str(error)
            kind = SuperLinkUnreachableError if error.response.is_server_error else SessionError
            raise kind(f"the SuperLink {self.address} refuses: {printable(words, 500)}") from None
        except (httpx.HTTPError, ValueError) as error:
            raise SuperLinkUnreachableError(
                f"the SuperLink {self.address} does not answer ({printable(error, 200)}): is it started, and are its "
                "address and root certificates in Flower's config.toml right?"
            ) from None
        run = answer.run_dict.get(run_id)
        if run is None:
            return None
        return RunState(run.status.status, run.status.sub_status, printable(run.status.details, 2000))


def follow(
    api: ControlApi,
    run_id: int,
    say: Callable[[str], None],
    *,
    poll: float = POLL_SECONDS,
    patience: float = PATIENCE_SECONDS,
) -> None:
    """Wait until a run has completed, and report each change of its status.

    Parameters
    ----------
    api : ControlApi
        Control API of the SuperLink.
    run_id : int
        Number of the run.
    say : Callable[[str], None]
        Receives the reports.
    poll, patience : float
        Seconds between two requests; seconds for which a SuperLink may be unreachable once it has answered.

    Raises
    ------
    ConfigError
        When the SuperLink has no such run.
    RunStoppedError
        When somebody stopped the run.
    SessionError
        When the run failed, or the SuperLink has lost it or cannot be reached.
    """
    last, answered = RunState(""), 0.0
    while True:
        try:
            state = api.state(run_id)
        except SuperLinkUnreachableError as error:
            if not last.status:
                raise
            if time.monotonic() > answered + patience:
                raise SessionError(f"{error} It has been away for {patience:g} s; the run was {last.status}") from None
            time.sleep(poll)
            continue
        answered = time.monotonic()
        if state is None:
            raise _unknown_run(api, run_id, last)
        if state.status != last.status:
            say(f"run {run_id} is {state.status}")
        if state.status == "finished":
            _check_completed(state, run_id)
            return
        last = state
        time.sleep(poll)


def _unknown_run(api: ControlApi, run_id: int, last: RunState) -> ConfigError | SessionError:
    if not last.status:
        return ConfigError(f"the SuperLink {api.address} knows no run {run_id}; `flwr list` shows those that it has")
    return SessionError(
        f"the SuperLink {api.address} has lost run {run_id}, which was {last.status}: it was started again without "
        "--database, or with another one"
    )


def _check_completed(state: RunState, run_id: int) -> None:
    """Raise an error with the reason if a run that has ended did not complete."""
    if state.outcome == "completed":
        return
    if state.outcome == "stopped":
        raise RunStoppedError(f"run {run_id} was stopped (flwr stop)")
    died = (
        "; its ServerApp died without a word: it was killed, its memory was used up, or its host went down"
        if _NO_HEARTBEAT in state.details
        else ""
    )
    raise SessionError(f"run {run_id} failed: {state.details or 'no reason is known'}{died}")


def read_run_id(text: str) -> int:
    """Return the run ID in a text: the ID alone, or the output of ``flwr run --format json``.

    Raises
    ------
    ConfigError
        When there is none.
    SessionError
        When no run was started: the output reports a failure, or is empty because `flwr run` died.

    Examples
    --------
    >>> read_run_id("17"), read_run_id('{"success": true, "run-id": "17"}')
    (17, 17)
    """
    text = text.strip()
    if not text:
        raise SessionError("flwr run has printed nothing, so no run is known to have started; its own words say why")
    if text.startswith("{"):
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError):
            answer = {}
        if answer.get("success") is False:
            raise SessionError(f"flwr run has started no run: {printable(answer.get('error-message'), 2000)}")
        text = str(answer.get("run-id"))
    if not (text.isascii() and text.isdecimal()) or not 0 < int(text[:30]) < _MOST_IDS:
        raise ConfigError(
            f"{printable(text, 60)!r} is no run ID; give the number that `flwr run` shows, or - to read what "
            "`flwr run ... --format json` prints"
        )
    return int(text)


def read_hook(command: str) -> list[str]:
    """Return a command with its arguments, to be run without a shell.

    Raises
    ------
    ConfigError
        When it cannot be parsed, or there is no such program: better now than when it is needed.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"--on-failure is {command!r}: {error}") from None
    if not words or shutil.which(words[0]) is None:
        raise ConfigError(f"--on-failure is {command!r}, and no such program can be run here")
    return words


def alert(command: Sequence[str], run: str, reason: str) -> None:
    """Run the command of a failure with the run and the reason in its environment; log a failure of the command."""
    environment = {**os.environ, RUN_VARIABLE: run, REASON_VARIABLE: reason}
    try:
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, timeout=_HOOK_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        _log.error("--on-failure: %s", error)
        return
    if done.returncode != 0:
        _log.error("--on-failure: %s ended with %d", command[0], done.returncode)
