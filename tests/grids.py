"""A grid of deployed nodes in one process."""

from __future__ import annotations

from flower_vfl.apps.client_app import make_client_app
from flower_vfl.apps.local_grid import LocalGrid


class DeployedGrid(LocalGrid):
    """Every node on a host of its own, with the node config given for it; none marks a simulation."""

    simulation = False

    def __init__(self, nodes, run_config, client_app=None):
        super().__init__(client_app or make_client_app(), len(nodes), run_config)
        for context, node in zip(self._contexts.values(), nodes, strict=True):
            context.node_config = node
