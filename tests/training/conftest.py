"""The frames of a run, for tests of what parties hear and say."""

import pytest

from flower_vfl.parties.feature import FeatureParty
from flower_vfl.protocol.frame import Kind


@pytest.fixture
def frames(monkeypatch):
    """A list of each frame that a party receives in a run: its name, the frame and the answer, as plain values.

    The last answers are left out: the time of computing is in them.
    """
    seen = []

    def recorded(party, frame):
        answer = handle(party, frame)
        seen.append((party.name, plain(frame), plain(None if frame.kind in LAST else answer)))
        return answer

    handle = FeatureParty.handle
    monkeypatch.setattr(FeatureParty, "handle", recorded)
    return seen


LAST = (Kind.FINISH, Kind.EXPORTED)


def plain(frame):
    """All of a frame as plain values, its kind first."""
    if frame is None:
        return None
    return frame.kind, frame.step, dict(frame.fields), {name: t.tolist() for name, t in frame.tensors.items()}
