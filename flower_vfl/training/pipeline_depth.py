"""The choice of the pipeline depth, the number of steps in flight, by a measurement of the link."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from flower_vfl.config.schema import TransportConfig
from flower_vfl.errors import PartyError
from flower_vfl.parties.label import LabelParty
from flower_vfl.protocol.frame import Frame, Kind
from flower_vfl.training.loop import embedding_in, receive_answers
from flower_vfl.transport.base import Link

_log = logging.getLogger(__name__)

LIMIT = 4
"""Largest number of steps in flight by automatic choice: gradients are as many steps old, which costs utility."""

WORTHWHILE_SHARE = 0.3
"""Share of a step that the link must take for more than one in flight; one is exact, and loopback takes a fifth."""

_ROUNDS, _ENOUGH_SECONDS = 5, 10.0


@dataclass(frozen=True)
class StepTiming:
    """The times of one step without pipelining, in seconds.

    Attributes
    ----------
    step : float
        Time from the request to the end of the label party's computation.
    label, party : float
        Parts of it: computation at the label party, and at the slowest feature party.
    round_trip : float
        Round-trip time of a frame without tensors.
    """

    step: float
    label: float
    party: float
    round_trip: float

    @property
    def link(self) -> float:
        """Seconds of a step that the link takes."""
        return max(0.0, self.step - self.label - self.party)

    @property
    def in_flight(self) -> int:
        """The fewest steps in flight that hide the time of the link.

        With W of them a step takes step / W, but never less than the transfer of a frame: as many bytes go up as down,
        so that is half of the link's time beyond the round trip. More than ``step / max(label + party, frame)`` only
        make gradients older.
        """
        if self.link <= WORTHWHILE_SHARE * self.step:
            return 1
        frame = max(0.0, self.link - self.round_trip) / 2
        return max(1, min(LIMIT, math.ceil(self.step / max(self.label + self.party, frame, self.step / LIMIT))))


def choose_depth(
    label: LabelParty, links: Mapping[str, Link], rows: int, config: TransportConfig, *, known: int = 0
) -> int:
    """Return the number of steps in flight; if it is not configured, choose it and send it to every party.

    Parameters
    ----------
    label : LabelParty
        The label party, before its first step.
    links : Mapping[str, Link]
        Link to each feature party, with no frame under way.
    rows : int
        Number of rows of a batch, B.
    config : TransportConfig
        Transport configuration of the run; in one process there is no link, and the depth is 1.
    known : int
        The depth of the resumed training run; 0 to measure.
    """
    if config.in_flight:
        return config.in_flight
    chosen = 1 if config.kind == "inproc" else known
    if not chosen:
        timing = measure(label, links, rows, config.step_timeout)
        chosen = timing.in_flight
        _log.info(
            "a step takes %.1f ms, the link %.1f ms of them: %d in flight (transport.in_flight = 0)",
            *(1000 * timing.step, 1000 * timing.link, chosen),
        )
    announce_depth(links, chosen, config)
    return chosen


def announce_depth(links: Mapping[str, Link], chosen: int, config: TransportConfig) -> None:
    """Send the number of steps in flight to every party, if it is not configured."""
    if not config.in_flight:
        for link in links.values():
            link.send(Frame(Kind.IN_FLIGHT, fields={"in_flight": chosen}))


def measure(label: LabelParty, links: Mapping[str, Link], rows: int, timeout: float) -> StepTiming:
    """Return the median times of trial runs of the first step; no model and no generator changes.

    Raises
    ------
    PartyError
        When a party reports an impossible time.
    """
    rounds: list[tuple[float, float, float]] = []
    trips: list[float] = []
    started = time.perf_counter()
    while len(trips) < 2 or (len(trips) <= _ROUNDS and time.perf_counter() - started < _ENOUGH_SECONDS):
        rounds.append(_dry_run(label, links, rows, timeout))
        trips.append(_round_trip(links, timeout))
    step, label_party, party = (statistics.median(values) for values in zip(*rounds[1:], strict=True))  # 1st: warm-up
    return StepTiming(step, label_party, party, statistics.median(trips[1:]))


def _dry_run(label: LabelParty, links: Mapping[str, Link], rows: int, timeout: float) -> tuple[float, float, float]:
    """Run one trial step; return its seconds in all, at the label party and at the slowest feature party."""
    started = time.perf_counter()
    for link in links.values():
        gradient = torch.zeros(rows, *link.shape, dtype=link.dtype)
        link.send(Frame(Kind.PROBE, fields={}, tensors={"gradient": gradient}))
    embeddings, seconds = {}, 0.0
    for link, frame in receive_answers(links, Kind.PROBED, -1, timeout):
        embeddings[link.party] = embedding_in(frame, link, rows)
        reported = frame.fields.get("seconds")
        if not isinstance(reported, float) or not 0.0 <= reported < math.inf:
            raise PartyError(f"party {link.party!r} reports that a trial step took {reported!r} seconds")
        seconds = max(seconds, reported)
    received = time.perf_counter()
    label.dry_run(embeddings)
    ended = time.perf_counter()
    return ended - started, ended - received, seconds


def _round_trip(links: Mapping[str, Link], timeout: float) -> float:
    """Return the seconds until every party has answered a frame without tensors."""
    started = time.perf_counter()
    for link in links.values():
        link.send(Frame(Kind.PROBE))
    list(receive_answers(links, Kind.PROBED, -1, timeout))
    return time.perf_counter() - started
