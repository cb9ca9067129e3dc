"""Headless Chromium for tests: layout of pages, and violations that axe-core finds in them."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PHONE, DESKTOP, PAPER = 390, 1280, 680  # pixels; A4 less its margins is 18 cm
MEDIA = {PHONE: "phone", DESKTOP: "desktop", PAPER: "paper"}
OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--dump-dom"]

_AXE = """onload = async () => {
  const found = [];
  for (const frame of document.querySelectorAll("iframe")) {
    const page = frame.contentWindow;
    page.eval(document.getElementById("axe").textContent);
    const { violations } = await page.axe.run({ resultTypes: ["violations"], preload: false });
    const grave = violations.filter(v => v.impact !== "minor"), whole = page.document.documentElement;
    found.push({ name: frame.name, over: whole.scrollWidth - whole.clientWidth,
                 violations: grave.map(v => ({ id: v.id, impact: v.impact, at: v.nodes.map(n => n.html) })) });
  }
  document.body.textContent = JSON.stringify(found);
}"""


def frame(name, page, width):
    """Return an iframe with the page; at the width of paper, its print rules apply and its screen rules do not."""
    text = re.sub(r"<meta http-equiv[^>]*>", "", page.read_text())
    text = text.replace("<head>", f'<head><base href="{page.as_uri()}">', 1)
    if width == PAPER:
        text = text.replace("@media print {", "@media all {").replace("@media screen {", "@media not all {")
    style = f"width: {width}px; border: 0"
    return f'<iframe name="{name} {MEDIA[width]}" style="{style}" srcdoc="{html.escape(text)}"></iframe>'


def seen(folder, frames, script, timeout=60):
    """Return the JSON list that a script writes into the body of a page with these frames."""
    wrapper = folder / "all.html"
    wrapper.write_text(f'<!doctype html><meta charset="utf-8"><body>{"".join(frames)}</body><script>{script}</script>')
    options = [*OPTIONS, f"--user-data-dir={folder / 'profile'}", f"--virtual-time-budget={timeout * 1000}"]
    command = [CHROMIUM, *options, wrapper.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=True)
    return json.loads(html.unescape(re.search(r"<body>(\[.*\])</body>", done.stdout, re.DOTALL)[1]))


def violations(folder, pages, timeout=280):
    """Return axe-core's violations, except minor ones, of each page at the widths of a phone and of a desktop.

    Skip the test where axe-core is not installed.
    """
    try:
        (axe,) = (path for path in files("axe-core-python") or [] if path.name == "axe.min.js")
    except PackageNotFoundError:
        pytest.skip("axe-core-python is not installed: pip install '.[dev]'")
    frames = [frame(name, page, width) for name, page in pages.items() for width in (PHONE, DESKTOP)]
    source = f'<script type="text/plain" id="axe">{Path(axe.locate()).read_text()}</script>'
    return seen(folder, [*frames, source], _AXE, timeout)
