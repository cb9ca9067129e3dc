"""(ad) The account of a proof and the audit of epsilon in a run: their computing time, and their number of calls.

The account is opened before the sessions, and charged before the first step: it is no part of a step, as the number
of calls shows. The audit follows the last step: its guesses, and the models that estimate the odds of labels. The
readers that make the guesses belong to the informed audit, which runs without it too; their time is reported beside.
Local heads at epsilon 1 with a ledger, six epochs, `inproc`, one torch thread. Target: the audit at most 5 % of the
run's computing time. `--quick` has generated data with few rows, where its share is large.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from harness import arguments, report

from flower_vfl.accounting.ledger import Limit, PrivacyLedger
from flower_vfl.apps import run
from flower_vfl.auditing import monitor
from flower_vfl.auditing.monitor import LeakageMonitor
from flower_vfl.config import load_config
from flower_vfl.training import run as training_run

SYNTHETIC = {"rows": 4_000, "test_rows": 1_000, "parties": 2}


class Timed:
    """A counter of the calls of functions and of their computing time."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}

    def wrap(self, place: Any, name: str) -> None:
        """Replace a function by one that is counted."""
        setattr(place, name, partial(self._call, name, getattr(place, name)))

    def wrap_method(self, place: type, name: str) -> None:
        """Replace a method by one that is counted."""
        original: Callable[..., Any] = getattr(place, name)
        setattr(place, name, lambda *given, **named: self._call(name, original, *given, **named))

    def _call(self, name: str, original: Callable[..., Any], /, *given: Any, **named: Any) -> Any:
        started = time.process_time()
        try:
            return original(*given, **named)
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - started
            self.calls[name] = self.calls.get(name, 0) + 1


def main() -> None:
    """Train once, and report."""
    quick, timed = arguments(__doc__).quick, Timed()
    timed.wrap(training_run, "open_account")
    timed.wrap_method(PrivacyLedger, "charge")
    timed.wrap(monitor, "audit_epsilon")
    timed.wrap(monitor, "read_background")
    timed.wrap_method(LeakageMonitor, "finish_audit")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.json"
        PrivacyLedger.create(path, Limit(4.0))
        changed: dict[str, Any] = {
            **{"training.epochs": 2 if quick else 6, "training.patience": 0},
            **{"privacy.ledger": str(path), "attack.audit": False},
            "defenses": [{"name": "local_head", "epsilon": 1.0}],
        }
        if quick:
            changed |= {"data.name": "synthetic", **{f"data.options.{key}": value for key, value in SYNTHETIC.items()}}
        started = time.process_time()
        result = run(load_config("census", changed))
        whole = time.process_time() - started
    audit = timed.seconds["audit_epsilon"] + timed.seconds["read_background"]
    report(
        "accounting",
        target="audit <= 0.05 of the run",
        met=audit <= 0.05 * whole,
        quick=quick,
        share_of_audit=audit / whole,
        share_of_informed_readers=(timed.seconds["finish_audit"] - audit) / whole,
        account_ms=1e3 * (timed.seconds["open_account"] + timed.seconds["charge"]),
        calls=timed.calls,
        steps=result.outcome.steps,
        run_seconds=whole,
    )


if __name__ == "__main__":
    main()
