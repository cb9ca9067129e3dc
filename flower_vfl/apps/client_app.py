"""The ClientApp of feature parties, with a handler for each kind of message."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from flower_vfl.apps.alignment.client import answer_alignment
from flower_vfl.apps.error_redaction import redact_errors
from flower_vfl.apps.factories import BottomFactory, DataFactory, TopFactory, default_bottom, default_top, open_data
from flower_vfl.apps.prediction_client import PredictionClient
from flower_vfl.apps.training_client import TrainingClient
from flower_vfl.config import Config, from_run_config
from flower_vfl.training.factories import OptimizerFactory


def make_client_app(
    *,
    bottom: BottomFactory = default_bottom,
    top: TopFactory = default_top,
    data: DataFactory = open_data,
    optimizer: OptimizerFactory | None = None,
    config: Config | None = None,
) -> ClientApp:
    """Make the ClientApp of feature parties.

    Parameters
    ----------
    bottom : Callable[[FeatureSpec, Config], nn.Module]
        Makes a party's bottom model.
    top : Callable[[tuple[int, ...], int, Config], nn.Module]
        Makes a top model like the label party's, with which an attacker tries to complete its bottom model.
    data : Callable[[Config], VerticalData]
        Opens the data; the party loads only its own part.
    optimizer : Callable[[nn.Module, Config], torch.optim.Optimizer], optional
        Makes the party's optimizer, instead of the configuration's.
    config : Config, optional
        Configuration instead of Flower's run config.

    Returns
    -------
    ClientApp
        App for all feature parties; a node's party is in its node config (`party`), in a simulation its partition.
    """
    training, prediction = TrainingClient(bottom, top, data, optimizer, config), PredictionClient(bottom, data)
    app = ClientApp(mods=[redact_errors])
    app.train()(training.train)
    app.train("frames")(training.frames)
    app.query()(prediction.query)
    app.query("frames")(prediction.frames)

    @app.query("align")
    def align(message: Message, context: Context) -> Message:
        return answer_alignment(message, context, config or from_run_config(context.run_config))

    return app
