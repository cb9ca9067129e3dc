"""One self-contained page for a run, or for the comparison of several."""

from flower_vfl.reports.page import render

__all__ = ["render"]
