"""Figures as functions of plain values: each returns inline SVG in the page's own colours."""

from flower_vfl.reports.figures.embeddings import Reached, angle_figure, map_figure, protection_figure, rebuild_figure
from flower_vfl.reports.figures.periods import period_figure
from flower_vfl.reports.figures.snapshots import snapshot_figures
from flower_vfl.reports.figures.trade_off import Point, setting_figure, trade_off_figure
from flower_vfl.reports.figures.training import (
    budget_figure,
    epoch_figure,
    leak_figure,
    loss_figure,
    remembered_figure,
)

__all__ = [
    "Point",
    "Reached",
    "angle_figure",
    "budget_figure",
    "epoch_figure",
    "leak_figure",
    "loss_figure",
    "map_figure",
    "period_figure",
    "protection_figure",
    "rebuild_figure",
    "remembered_figure",
    "setting_figure",
    "snapshot_figures",
    "trade_off_figure",
]
