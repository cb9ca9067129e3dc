"""Frames that are sent in the runs of these tests."""

from __future__ import annotations

import pytest

from flower_vfl.transport.base import Link


@pytest.fixture
def frames(monkeypatch):
    """Record every frame that a link sends in a run."""
    from flower_vfl.transport import inproc, messages, stream

    seen = []
    for module in (inproc, messages, stream):
        for kind in list(vars(module).values()):
            if isinstance(kind, type) and issubclass(kind, Link) and "send" in vars(kind):

                def send(self, frame, real=kind.send):
                    seen.append(frame)
                    return real(self, frame)

                monkeypatch.setattr(kind, "send", send, raising=True)
    return seen
