"""Sessions between a label party and fake feature parties, in this process."""

from contextlib import contextmanager

import pytest

from flower_vfl.apps.local_grid import LocalGrid
from flower_vfl.config.schema import TransportConfig
from flower_vfl.transport.sessions import Sessions
from tests.transport.fakes import client_app, fit


@pytest.fixture
def sessions(monkeypatch):
    """Make a function that opens sessions with fake parties: `with sessions("stream", [FakeParty()]) as opened:`."""
    monkeypatch.setattr("flower_vfl.transport.sessions._SETTLE_SECONDS", 1.0)

    @contextmanager
    def make(
        kind, parties, *, names=None, simulation=True, rows=3, width=4, check=None, grid=None, offer=None, **config
    ):
        names = [party.name for party in parties if party is not None] if names is None else names
        settings = TransportConfig(kind=kind, **{"connect_timeout": 10.0, **config})
        grid = grid or LocalGrid(client_app(parties), len(parties), {})
        with Sessions(grid, names, settings, simulation=simulation, offer=offer) as opened:
            opened.grid = grid
            opened.open(check or (lambda link: fit(link, rows=rows, width=width)))
            yield opened

    return make
