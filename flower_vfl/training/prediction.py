"""Predictions of a trained model: the label party requests the embeddings of rows and computes their logits."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from flwr.serverapp import Grid
from torch import Tensor, nn

from flower_vfl.data.store.source import FeatureSource
from flower_vfl.errors import PartyError
from flower_vfl.nn.placement import Placement
from flower_vfl.parties.network import LabelModel
from flower_vfl.protocol.frame import Frame, Kind
from flower_vfl.protocol.printable import printable
from flower_vfl.protocol.schedule import Rows
from flower_vfl.training.assembly import build_defenses, build_models
from flower_vfl.training.grids import is_simulation
from flower_vfl.training.handshake import check_software, negotiate
from flower_vfl.training.loop import EVALUATIONS_UNDER_WAY, embedding_in, receive_answers
from flower_vfl.training.probe import check_restored, cut_of
from flower_vfl.training.protocols import TrainedStrategy
from flower_vfl.transport.base import Link
from flower_vfl.transport.sessions import Sessions
from flower_vfl.transport.signing import Signer

_log = logging.getLogger(__name__)

_FINISH_TIMEOUT = 3600.0
"""Seconds to wait for the parties' last answers."""


@dataclass(frozen=True)
class PredictionRequest:
    """The label party's request for predictions.

    Attributes
    ----------
    batches : Iterable[Rows]
        Positions (B,) of the rows, at most `training.eval_batch_size` at once.
    count : int
        Number of rows at every party, all of which may be requested.
    rows : str
        Digest of their ordered IDs, at every party.
    weights : Mapping[str, str]
        Digest of each feature party's weights after training.
    own : FeatureSource or None
        The label party's own columns of these rows, if it has any.
    fixed : FeatureSource or None
        Its columns of the rows that `noted` was computed for, if it has any.
    noted : tuple of str
        Logits of the trained network for fixed inputs, see `flower_vfl.training.probe`.
    """

    batches: Iterable[Rows]
    count: int
    rows: str
    weights: Mapping[str, str]
    own: FeatureSource | None
    fixed: FeatureSource | None = None
    noted: tuple[str, ...] = ()


def run_prediction(
    strategy: TrainedStrategy,
    grid: Grid,
    ask: PredictionRequest,
    load: Callable[[nn.Module], None],
    offer: Mapping[str, str],
    sign: Signer | None,
) -> Generator[tuple[Rows, Tensor]]:
    """Open the sessions and yield rows with their logits, batch by batch, in the order of the request.

    Parameters
    ----------
    strategy : TrainedStrategy
        The trained strategy with its defenses, whose changes of embeddings are part of the network.
    grid : Grid
        Flower's grid.
    ask : PredictionRequest
        The request.
    load : Callable[[nn.Module], None]
        Function that loads the trained weights into the label party's module.
    offer : Mapping[str, str]
        Fields of the offer beside those for reaching the label party.
    sign : Signer, optional
        Signs every offer.

    Raises
    ------
    PartyError
        When a party fails, refuses, or has other weights or rows.
    NotRestoredError
        When the network gives other logits than after training; no row was requested then.
    """
    base, simulation = strategy.base, is_simulation(grid)
    config = base.config
    with Sessions(
        grid, base.parties, config.transport, simulation=simulation, offer=offer, purpose="query", sign=sign
    ) as sessions:
        links = sessions.open(lambda link: _check(link, strategy, ask))
        probe = None if ask.own is None else (ask.own, np.arange(min(2, len(ask.own))))
        cut = cut_of(links)
        learned = build_defenses(strategy, {party: shape for party, (shape, _) in cut.items()})
        top, bottom = build_models(base, [link.shape for link in links.values()], probe)
        fusion, placement = config.model.fusion, Placement.of(config)
        model = LabelModel(
            top, strategy, base.parties, bottom=bottom, fusion=fusion, learned=learned, placement=placement
        )
        load(model.module)
        check_restored(model, strategy, cut, ask.fixed, ask.noted)
        for index, rows in _requested(links, ask.batches):
            embeddings = {
                link.party: embedding_in(frame, link, len(rows))
                for link, frame in receive_answers(links, Kind.EMBEDDING, index, config.transport.step_timeout)
            }
            yield rows, model.logits(embeddings, ask.own, rows).cpu()
        sessions.finish(_FINISH_TIMEOUT)


def _requested(links: Mapping[str, Link], batches: Iterable[Rows]) -> Iterator[tuple[int, Rows]]:
    """Request a few batches ahead and yield the number and rows of the batch that is answered next."""
    pending: deque[tuple[int, Rows]] = deque()
    for index, rows in enumerate(batches):
        frame = Frame(Kind.PREDICT, index, {"count": len(rows)}, {"rows": torch.from_numpy(rows)})
        for link in links.values():
            link.send(frame)
        pending.append((index, rows))
        if len(pending) == EVALUATIONS_UNDER_WAY:
            yield pending.popleft()
    yield from pending


def _check(link: Link, strategy: TrainedStrategy, ask: PredictionRequest) -> None:
    """Refuse a party with other weights or other rows, and set the shape of its embeddings on its link."""
    check_software(link)
    hello = link.hello.fields
    if hello.get("weights") != ask.weights.get(link.party):
        raise PartyError(
            f"party {link.party!r} has other weights than it reported after training: "
            f"{printable(hello.get('weights'), 12)}, "
            f"reported {str(ask.weights.get(link.party))[:12]}"
        )
    if (hello.get("rows"), hello.get("count")) != (ask.rows, ask.count):
        # The message goes to the party, and a digest in it would confirm a guess of all IDs.
        _log.error("the rows of party %r are %s, here %.12s", link.party, printable(hello.get("rows"), 12), ask.rows)
        raise PartyError(
            f"party {link.party!r} has other rows: {printable(hello.get('count'), 20)} of them, here {ask.count}; "
            "their IDs and their order must be the same at every party: align them first"
        )
    negotiate(link, strategy.base.config, strategy.base.config.training.eval_batch_size)
