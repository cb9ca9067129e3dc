"""The label party's ServerApp of the presets, for `flwr run`."""

import logging

from flower_vfl.apps import make_server_app

# Flower shows its own logger; ours goes the same way.
_flower = logging.getLogger("flwr")
_ours = logging.getLogger("flower_vfl")
_ours.handlers = list(_flower.handlers)
_ours.setLevel(logging.INFO)
_ours.propagate = False

app = make_server_app()
