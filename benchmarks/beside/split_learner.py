"""The smallest learner for NVFlare's SplitNN workflow, which comes without one; NVFlare's Python imports this.

As in NVFlare's own example, site-1 has the features and drives: it sends the embedding of a batch as an auxiliary
message, site-2, which has the labels, answers with the gradient. The server passes messages on. The gradient of a step
and the embedding of the next one are one round trip.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, from_shareable
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.abstract.learnable_persistor import LearnablePersistor
from nvflare.app_common.abstract.learner_spec import Learner
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.workflows.splitnn_workflow import SplitNNConstants, SplitNNDataKind
from nvflare.app_opt.pt.decomposers import TensorDecomposer
from nvflare.fuel.utils import fobs
from plain import Features, Labels, Ticks, batch, work

LOSS = "loss"


class NoPersistor(LearnablePersistor):
    """A persistor of an unused model: both sites have their weights from the benchmark's file."""

    def load(self, fl_ctx: Any) -> Any:
        """Return one number."""
        return make_model_learnable({"none": np.zeros(1, np.float32)}, {})

    def save(self, learnable: Any, fl_ctx: Any) -> None:
        """Keep nothing."""


class SplitLearner(Learner):
    """A learner of one side of the cut."""

    def initialize(self, parts: dict[str, Any], fl_ctx: Any) -> None:
        """Load this site's side; at site-2, answer what site-1 sends."""
        fobs.register(TensorDecomposer)
        self._work = work()
        if fl_ctx.get_identity_name() == "site-2":
            self._labels = Labels(self._work)
            fl_ctx.get_engine().register_aux_message_handler(
                topic=SplitNNConstants.TASK_TRAIN_LABEL_STEP, message_handle_func=self._answer
            )

    def init_model(self, shareable: Shareable, fl_ctx: Any, abort_signal: Any) -> Shareable:
        """Do nothing: the weights are already here."""
        return make_reply(ReturnCode.OK)

    def train(self, shareable: Shareable, fl_ctx: Any, abort_signal: Any) -> Shareable:
        """Train until the benchmark is over; site-2 only answers."""
        if fl_ctx.get_identity_name() == "site-2":
            return make_reply(ReturnCode.OK)
        (party,) = self._work["columns"]
        features, ticks = Features(self._work, party), Ticks()
        step = 0
        while not abort_signal.triggered:
            message = DXO(
                data_kind=SplitNNDataKind.ACTIVATIONS,
                data={SplitNNConstants.DATA: fobs.dumps(features.forward(batch(self._work, step)))},
            )
            message.set_meta_prop(SplitNNConstants.BATCH_INDICES, step)
            answers = fl_ctx.get_engine().send_aux_request(
                targets="site-2",
                topic=SplitNNConstants.TASK_TRAIN_LABEL_STEP,
                request=message.to_shareable(),
                timeout=SplitNNConstants.TIMEOUT,
                fl_ctx=fl_ctx,
            )
            answer = from_shareable(answers["site-2"])
            features.backward(fobs.loads(answer.data[SplitNNConstants.DATA]))
            ticks.tick(answer.data[LOSS])
            step += 1
        return make_reply(ReturnCode.TASK_ABORTED)

    def _answer(self, topic: str, request: Shareable, fl_ctx: Any) -> Shareable:
        """Return the gradient of the received embedding."""
        message = from_shareable(request)
        rows = batch(self._work, message.get_meta_prop(SplitNNConstants.BATCH_INDICES))
        loss, gradient = self._labels.step(rows, fobs.loads(message.data[SplitNNConstants.DATA]))
        data = {SplitNNConstants.DATA: fobs.dumps(gradient), LOSS: loss}
        return DXO(data_kind=SplitNNDataKind.GRADIENT, data=data).to_shareable()
