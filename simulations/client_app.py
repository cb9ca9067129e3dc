"""The feature parties' ClientApp of the presets, for `flwr run`."""

from flower_vfl.apps import make_client_app

app = make_client_app()
