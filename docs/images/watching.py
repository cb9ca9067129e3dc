"""Picture of the page that follows a run: `python docs/images/watching.py RUN_DIR` while the run trains.

It needs Chromium. The picture in the docs is that of a trial deployment (`docs/deployment/trial.md`, with 400 epochs),
at the label party.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

from flower_vfl.reports.watching.server import WatchServer

NAMES = ("chromium", "chromium-browser", "google-chrome")


def main() -> None:
    """Serve the run's page, look at it, and write the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("run", type=Path, help="folder of a run")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("watching.png"))
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=1180)
    given = parser.parse_args()
    browser = next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        parser.error(f"there is no browser here: install one of {', '.join(NAMES)}")
    server = WatchServer(given.run)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as profile:
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"]
        options += [f"--window-size={given.width},{given.height}", "--virtual-time-budget=8000"]
        subprocess.run([browser, *options, f"--screenshot={given.out}", server.url], check=True, timeout=120)
    server.shutdown()


if __name__ == "__main__":
    main()
