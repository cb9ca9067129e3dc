"""Pictures of pages, by Chromium: `python docs/images/pages.py`.

They show the runs kept in `docs/images/pictured`: `marvell-full-s4` of the demo, which `python benchmarks/demo.py
--readme` puts there, and a trial deployment (`docs/deployment/trial.md`, with 60 epochs), copied at the label party
while it trains. `python docs/images/pages.py watching RUN_DIR` keeps another run and takes its picture.

A picture has the digest of its page's text and style in it, so a test finds one that shows an older page.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from flower_vfl.apps.live import LIVE
from flower_vfl.reports import render
from flower_vfl.reports.watching.follower import Follower
from flower_vfl.reports.watching.view import RunPage

HERE = Path(__file__).parent
RUNS = {"report": HERE / "pictured" / "marvell-full-s4", "watching": HERE / "pictured" / "trial"}
FILES = {
    "report": ("config.toml", "result.json", "steps.parquet"),
    "watching": ("config.toml", "live.json", "label.journal", "run.log"),
}
SIZES = {"report": (1000, 1120), "watching": (1280, 1180)}
"""Width and height of each picture, in pixels."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
KEY = "page"
_CHANGING = re.compile(r"<svg.*?</svg>|<img[^>]*>|<footer>.*?</footer>|\d{4}-\d{2}-\d{2}", re.DOTALL)
"""Parts of a page that differ where it has the same text: figures, the version that made it, dates of files."""


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("page", nargs="?", choices=RUNS, help="one page; both without it")
    parser.add_argument("run", nargs="?", type=Path, help="folder of another run, which is kept for the picture")
    given = parser.parse_args()
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        parser.error(f"there is no browser here: install one of {', '.join(BROWSERS)}")
    if given.run:
        keep(given.page, given.run)
    for page in [given.page] if given.page else RUNS:
        picture(browser, page)


def keep(page: str, run: Path) -> None:
    """Copy what a page shows of a run; paths and all but the last lines of its log are left out."""
    RUNS[page].mkdir(parents=True, exist_ok=True)
    for name in FILES[page]:
        content = (run / name).read_bytes()
        if name.endswith(".log"):
            content = b"".join(line for line in content.splitlines(keepends=True)[-20:] if b"/" not in line)
        (RUNS[page] / name).write_bytes(content)


def html(page: str) -> str:
    """Return a page of its kept run, HTML."""
    run = RUNS[page]
    if page == "watching":
        written = json.loads((run / LIVE).read_text(encoding="utf8"))["written"]
        return RunPage(Follower(run, clock=lambda: written)).page()
    with tempfile.TemporaryDirectory() as folder:
        return render([run], out=Path(folder) / "report.html").read_text(encoding="utf8")


def digest(page: str) -> str:
    """Return the digest of a page's text and style, in hexadecimal."""
    return hashlib.sha256(_CHANGING.sub("", html(page)).encode()).hexdigest()


def taken(page: str) -> str:
    """Return the digest of the page that a picture shows."""
    with Image.open(HERE / f"{page}.png") as image:
        return str(image.info.get(KEY, ""))


def picture(browser: str, page: str) -> None:
    """Write what the browser shows of a page, with the page's digest."""
    width, height = SIZES[page]
    target = HERE / f"{page}.png"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "page.html"
        source.write_text(html(page), encoding="utf8")
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder}/user"]
        options += [f"--window-size={width},{height}", "--virtual-time-budget=8000"]
        command = [browser, *options, f"--screenshot={target}", source.as_uri()]
        subprocess.run(command, check=True, timeout=120, stderr=subprocess.DEVNULL)  # it complains about the desktop
    facts = PngInfo()
    facts.add_text(KEY, digest(page))
    with Image.open(target) as image:
        image.save(target, pnginfo=facts, optimize=True)


if __name__ == "__main__":
    main()
