"""Checks of Flower's grid by the label party."""

from __future__ import annotations

from flwr.serverapp import Grid


def is_simulation(grid: Grid) -> bool:
    """Return True if all parties of this grid run on one side of one trust boundary.

    The label party decides this by itself, from the grid in its own process. Neither a node nor the run config may
    decide it, because in a simulation secrets derive from the seed.
    """
    return getattr(grid, "simulation", False) or type(grid).__name__ == "InMemoryGrid"


def replaces_nodes(grid: Grid) -> bool:
    """Return True if a node that died is replaced; Flower's simulation runtime does not replace its process."""
    return getattr(grid, "simulation", False) or not is_simulation(grid)
