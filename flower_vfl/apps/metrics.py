"""The metrics of a running training for Prometheus, as text, on this host's loopback only.

Losses and leaks depend on the labels, so no setting makes this endpoint listen elsewhere; to have them on another host,
they must be forwarded on purpose. Prometheus's text format is a few lines of text: no library is needed for it.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

from flower_vfl.errors import SetupError
from flower_vfl.loopback import LOOPBACK, NAMES, LoopbackServer
from flower_vfl.training.observer import Observer
from flower_vfl.transport.base import Link
from flower_vfl.version import package_version

_log = logging.getLogger(__name__)

_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_FAMILIES = {
    "info": ("gauge", "Always 1; the version of flower-vfl."),
    "steps_total": ("counter", "Steps that are done."),
    "steps_planned": ("gauge", "Steps of the whole training, if nothing ends it before."),
    "last_step_timestamp_seconds": ("gauge", "When the last step was done."),
    "train_loss": ("gauge", "Loss of the last step."),
    "leak_auc": ("gauge", "The monitor's largest leak AUC of one of the last 16 steps that were scored."),
    "epoch_metric": ("gauge", "What the last finished epoch reached."),
    "frame_bytes_total": ("counter", "Bytes of frames of a party's present session."),
    "reconnects_total": ("counter", "How often a party's present session went on after a break."),
    "queued_frames": ("gauge", "Frames of a party that have come and wait to be read."),
    "away_seconds": ("gauge", "Seconds since a party's stream broke; 0 while it is connected."),
}

MetricSample = tuple[str, Mapping[str, str], float]


class TrainingMetrics(Observer):
    """The present values of one training, in Prometheus's format."""

    def __init__(self) -> None:
        self._version = package_version("flower-vfl")
        self._values: dict[str, float] = {}
        self._epoch: dict[str, float] = {}
        self._links: Mapping[str, Link] = {}

    def on_links(self, links: Mapping[str, Link]) -> None:
        """Set the links, which count bytes, reconnects and queued frames of the parties."""
        self._links = links

    def on_start(self, steps: int, epochs: int, parties: tuple[str, ...]) -> None:
        """Set the number of steps."""
        self._values |= {"steps_planned": float(steps), "steps_total": self._values.get("steps_total", 0.0)}

    def on_step(self, step: int, epoch: int, loss: float, leak: float) -> None:
        """Set the values of a step."""
        now = time.time()
        self._values |= {"steps_total": step + 1.0, "train_loss": loss, "last_step_timestamp_seconds": now}
        if not math.isnan(leak):
            self._values["leak_auc"] = leak

    def on_epoch(self, step: int, epoch: int, metrics: Mapping[str, float]) -> None:
        """Set the metrics of an epoch."""
        self._epoch = dict(metrics)

    def text(self) -> str:
        """Return all values in Prometheus's text format.

        Examples
        --------
        >>> metrics = TrainingMetrics()
        >>> metrics.on_step(4, 1, loss=0.25, leak=0.5)
        >>> print(metrics.text())  # doctest: +ELLIPSIS
        # HELP flower_vfl_info ...
        # HELP flower_vfl_steps_total Steps that are done.
        # TYPE flower_vfl_steps_total counter
        flower_vfl_steps_total 5.0
        ...
        """
        samples = list(self._samples())
        lines = []
        for name, (kind, words) in _FAMILIES.items():
            found = [sample for sample in samples if sample[0] == name]
            if found:
                lines += [f"# HELP flower_vfl_{name} {words}", f"# TYPE flower_vfl_{name} {kind}"]
                lines += [_line(*sample) for sample in found]
        return "\n".join(lines) + "\n"

    def _samples(self) -> Iterable[MetricSample]:
        yield "info", {"version": self._version}, 1.0
        for name, value in dict(self._values).items():
            yield name, {}, value
        for name, value in self._epoch.items():
            yield "epoch_metric", {"name": name}, value
        for party, link in list(self._links.items()):
            yield "frame_bytes_total", {"party": party, "direction": "up"}, link.bytes_up
            yield "frame_bytes_total", {"party": party, "direction": "down"}, link.bytes_down
            yield "reconnects_total", {"party": party}, link.reconnects
            yield "queued_frames", {"party": party}, link.queued
            yield "away_seconds", {"party": party}, link.away


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    """Return the line of one sample; names of parties and metrics are plain words, which need no escapes."""
    shown = ",".join(f'{key}="{text}"' for key, text in labels.items())
    number = {math.inf: "+Inf", -math.inf: "-Inf"}.get(value, "NaN" if math.isnan(value) else repr(float(value)))
    return f"flower_vfl_{name}{{{shown}}} {number}" if shown else f"flower_vfl_{name} {number}"


@contextmanager
def serve_metrics(port: int) -> Generator[tuple[TrainingMetrics, ...]]:
    """Serve a training's metrics at `http://127.0.0.1:PORT/metrics` until the block ends; nothing at port 0.

    Raises
    ------
    SetupError
        When the port is in use, or not this user's.
    """
    if not port:
        yield ()
        return
    metrics = TrainingMetrics()
    try:
        server = LoopbackServer(port, _handler(metrics))
    except OSError as error:
        raise SetupError(
            f"the metrics cannot be served at {LOOPBACK}:{port}: {error.strerror}; set metrics_port to a free port, or "
            "to 0 for none"
        ) from None
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    _log.info("metrics: http://%s:%d/metrics", LOOPBACK, port)
    try:
        yield (metrics,)
    finally:
        server.shutdown()
        server.server_close()


def _handler(metrics: TrainingMetrics) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "flower-vfl", ""

        def do_GET(self) -> None:
            # A web page in a browser of this host must not read it under a host name of its own that resolves to here.
            if self.headers.get("Host", "").rpartition(":")[0] not in NAMES:
                self.send_error(403)
            elif self.path != "/metrics":
                self.send_error(404)
            else:
                body = metrics.text().encode()
                self.send_response(200)
                self.send_header("Content-Type", _TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, format: str, *values: object) -> None:
            _log.debug(format, *values)

    return Handler
