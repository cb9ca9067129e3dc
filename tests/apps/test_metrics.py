"""Prometheus reads a running training on the loopback address of the label party's host, and on no other."""

import re
import socket
import urllib.error
import urllib.request

import pytest

from flower_vfl.apps import run
from flower_vfl.errors import SetupError
from flower_vfl.simulations.flower_engine import free_port
from flower_vfl.strategies import Observer
from tests.toys import toy_config, toy_data

SAMPLE = re.compile(r'flower_vfl_(\w+)(?:\{((?:\w+="[^"\\\n]*",?)+)\})? (\S+)')


def fetch(port, path="/metrics", **headers):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def read(text):
    """Return the samples of a page in Prometheus's text format; each line must be a sample or a comment."""
    lines = [line for line in text.splitlines() if not line.startswith(("# HELP ", "# TYPE "))]
    return {(found[1], found[2] or ""): float(found[3]) for found in map(SAMPLE.fullmatch, lines)}


class Scraper(Observer):
    def on_epoch(self, step, epoch, metrics):
        self.last = fetch(self.port)[1]

    def __init__(self, port):
        self.port, self.pages, self.failures = port, [], []

    def on_step(self, step, epoch, loss, leak):
        if step in (2, 6):
            self.pages.append((step, loss, fetch(self.port)))
        if step == 6:
            for path, headers in (("/", {}), ("/metrics", {"Host": "rebound.example:9464"})):
                with pytest.raises(urllib.error.HTTPError) as caught:
                    fetch(self.port, path, **headers)
                self.failures.append(caught.value.code)


def config(port):
    return toy_config(transport={"kind": "stream"}, attack={"names": ["norm"]}, metrics_port=port)


def test_a_running_training_shows_steps_loss_leak_bytes_breaks_and_queues():
    scraper = Scraper(free_port())
    run(config(scraper.port), data=lambda _: toy_data(), observers=(scraper,))
    assert scraper.failures == [404, 403]
    for step, loss, (kind, page) in scraper.pages:
        assert kind.startswith("text/plain; version=0.0.4")
        values = read(page)
        assert values["steps_total", ""] == step + 1
        assert values["steps_planned", ""] > step
        assert values["train_loss", ""] == pytest.approx(loss)
        for direction in ("up", "down"):
            assert values["frame_bytes_total", f'party="a",direction="{direction}"'] > 0
        assert values["reconnects_total", 'party="a"'] == 0
        assert values["queued_frames", 'party="a"'] >= 0
        assert values["away_seconds", 'party="a"'] == 0
    last = read(scraper.last)
    assert last["epoch_metric", 'name="train_loss"'] > 0
    assert 0.0 <= last["leak_auc", ""] <= 1.0
    with pytest.raises(urllib.error.URLError):  # nobody listens after the run
        fetch(scraper.port)


def test_a_port_that_is_in_use_is_refused_before_anything_is_left(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SetupError, match=rf"cannot be served at 127.0.0.1:{port}: .*set metrics_port to a free"):
            run(config(port), out=tmp_path / "run", data=lambda _: toy_data())
    assert not (tmp_path / "run").exists()


def without_streams(port):
    """Return a configuration for one process, where no session endpoint opens a port."""
    return toy_config(attack={"names": ["norm"]}, metrics_port=port)


def test_no_port_is_opened_by_default_and_no_other_address_ever(monkeypatch):
    bound, bind = [], socket.socket.bind

    def noted(self, address):
        bound.append(address)
        return bind(self, address)

    monkeypatch.setattr(socket.socket, "bind", noted)
    run(without_streams(0), data=lambda _: toy_data())
    assert bound == []
    port = free_port()
    bound.clear()
    run(without_streams(port), data=lambda _: toy_data())
    assert bound == [("127.0.0.1", port)]
