"""One self-contained page for a run, for a sweep, or for the comparison of several runs."""

from typing import TYPE_CHECKING

from flower_vfl.lazy import lazy_names

if TYPE_CHECKING:
    from flower_vfl.reports.logged import log_report
    from flower_vfl.reports.page import render, render_search, render_sweep, renew

_HOMES = {
    "log_report": "flower_vfl.reports.logged",
    "render": "flower_vfl.reports.page",
    "render_search": "flower_vfl.reports.page",
    "render_sweep": "flower_vfl.reports.page",
    "renew": "flower_vfl.reports.page",
}

__all__ = ["log_report", "render", "render_search", "render_sweep", "renew"]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
