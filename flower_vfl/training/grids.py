"""What the label party can tell of the grid that it was given."""

from __future__ import annotations

from flwr.serverapp import Grid


def is_simulation(grid: Grid) -> bool:
    """Say whether all parties of this grid run on one side of one trust boundary.

    The label party decides this by itself, from the grid in its own process: nothing that comes from a node or from
    the run config may, because in a simulation secrets derive from the seed.
    """
    return getattr(grid, "simulation", False) or type(grid).__name__ == "InMemoryGrid"


def replaces_nodes(grid: Grid) -> bool:
    """Say whether a node that died can come back: Flower's simulation runtime does not replace its process."""
    return getattr(grid, "simulation", False) or not is_simulation(grid)
