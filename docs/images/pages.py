"""Pictures of pages, by Chromium: `python docs/images/pages.py report RUN_DIR`, or `watching RUN_DIR` while it trains.

The report in the README is that of the demo's run `marvell-full-s4`; `python benchmarks/demo.py --readme` makes it. The
page that follows a run is that of a trial deployment (`docs/deployment/trial.md`, with 400 epochs), at the label party.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

from flower_vfl.reports import render
from flower_vfl.reports.watching.server import WatchServer

NAMES = ("chromium", "chromium-browser", "google-chrome")
SIZES = {"report": (1000, 1120), "watching": (1280, 1180)}
"""Width and height of each picture, in pixels."""


def main() -> None:
    """Write the picture of a run's page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("page", choices=SIZES)
    parser.add_argument("run", type=Path, help="folder of a run")
    given = parser.parse_args()
    browser = next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        parser.error(f"there is no browser here: install one of {', '.join(NAMES)}")
    target = Path(__file__).with_name(f"{given.page}.png")
    if given.page == "report":
        picture(browser, given.page, render([given.run]).resolve().as_uri(), target)
        return
    server = WatchServer(given.run)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    picture(browser, given.page, server.url, target)
    server.shutdown()


def picture(browser: str, page: str, url: str, target: Path) -> None:
    """Write what the browser shows of a page."""
    width, height = SIZES[page]
    with tempfile.TemporaryDirectory() as profile:
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"]
        options += [f"--window-size={width},{height}", "--virtual-time-budget=8000"]
        command = [browser, *options, f"--screenshot={target}", url]
        subprocess.run(command, check=True, timeout=120, stderr=subprocess.DEVNULL)  # it complains about the desktop


if __name__ == "__main__":
    main()
