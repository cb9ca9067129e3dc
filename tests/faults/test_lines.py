"""Lines between the parties break again and again; the run ends with the same result."""

from __future__ import annotations

import random
import threading

import pytest

from flower_vfl import build_config, run
from flower_vfl.strategies import Observer
from flower_vfl.transport.stream import StreamEndpoint
from tests.faults.common import assert_same, setup_of_few
from tests.transport.proxies import Line


class Cut(Observer):
    """An observer that cuts a line shortly after every other step: within a message in either direction."""

    def __init__(self, lines, seed):
        self.lines, self.generator, self.cuts = lines, random.Random(seed), 0

    def on_step(self, step, epoch, loss, leak):
        if self.generator.random() < 0.5:
            threading.Timer(0.02 * self.generator.random(), self.generator.choice(self.lines).cut).start()
            self.cuts += 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_run_whose_lines_are_cut_goes_on_to_the_same_result(tmp_path, undisturbed_run_of_few, seed, monkeypatch):
    lines = []
    offer = StreamEndpoint.offer

    def over_a_line(endpoint, node):
        lines.append(Line(endpoint.address))
        return {**offer(endpoint, node), "address": lines[-1].address}

    monkeypatch.setattr(StreamEndpoint, "offer", over_a_line)
    cut = Cut(lines, seed)
    try:
        run(build_config(setup_of_few("stream")), out=tmp_path / "run", observers=(cut,))
    finally:
        for line in lines:
            line.close()
    assert cut.cuts > 5
    assert sum(line.connections for line in lines) > len(lines)
    assert_same(tmp_path / "run", undisturbed_run_of_few("stream"))
