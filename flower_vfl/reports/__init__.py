"""One self-contained page for a run, for a sweep, or for the comparison of several runs."""

from flower_vfl.reports.page import render, render_sweep, renew

__all__ = ["render", "render_sweep", "renew"]
