"""The frames of a run, for tests of what parties receive and send."""

import pytest

from flower_vfl.apps.training_client import TrainingClient
from flower_vfl.parties.feature import FeatureParty
from flower_vfl.protocol.frame import Kind


@pytest.fixture
def frames(monkeypatch):
    """Return a list of all frames of a run: party's name, frame that it receives and its answer, as plain values.

    The last answers are None, since they contain computing times.
    """
    received = []

    def recorded(party, frame):
        answer = handle(party, frame)
        received.append((party.name, plain(frame), plain(None if frame.kind in TIMED else answer)))
        return answer

    handle = FeatureParty.handle
    monkeypatch.setattr(FeatureParty, "handle", recorded)
    return received


class Empty(dict):
    """A dictionary that stores nothing: no party of an earlier message is found, as in a fresh process."""

    def __setitem__(self, key, value):
        pass


@pytest.fixture
def rebuilt(monkeypatch):
    """Let each message find no party of an earlier one, as where each message has a fresh process."""
    original = TrainingClient.__init__

    def patched(client, *args):
        original(client, *args)
        client._live = Empty()

    monkeypatch.setattr(TrainingClient, "__init__", patched)


TIMED = (Kind.FINISH, Kind.EXPORTED)


def plain(frame):
    """Return the content of a frame as plain values, its kind first."""
    if frame is None:
        return None
    return frame.kind, frame.step, dict(frame.fields), {name: t.tolist() for name, t in frame.tensors.items()}
