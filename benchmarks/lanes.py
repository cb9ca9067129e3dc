"""The lanes: a split run as users start it, the same with its party in another process, and a plain PyTorch loop."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from harness import PROCESSES, Enough, Gate
from slow_link import ADDRESS, free_port, slow_link
from torch import Tensor, nn

from flower_vfl.apps import run
from flower_vfl.apps.client_app import make_client_app
from flower_vfl.apps.factories import (
    DataFactory,
    computing,
    default_bottom,
    default_own,
    default_top,
    open_data,
    party_names,
)
from flower_vfl.apps.feature_party import build_feature_party
from flower_vfl.apps.local_grid import LocalGrid
from flower_vfl.apps.result import RunResult
from flower_vfl.apps.server_app import make_server_app
from flower_vfl.config import Config, build_config, load_config, to_run_config
from flower_vfl.data import Labels, MemoryData, PartyTable, VerticalData
from flower_vfl.data.store.memory import array_table
from flower_vfl.nn import bind_dropout, fuse, seeded_initialisation
from flower_vfl.nn.fusion import fused_shape
from flower_vfl.nn.placement import Placement
from flower_vfl.parties.loading import Loader
from flower_vfl.parties.network import adds_to_logits
from flower_vfl.rng import Secret
from flower_vfl.strategies import Observer
from flower_vfl.training.factories import schedule_of
from flower_vfl.training.pipeline_depth import LIMIT
from flower_vfl.transport.dialling import attend
from flower_vfl.transport.sessions import OFFER


def preset(quick: bool, **sections: Any) -> Config:
    """Return the census preset for many epochs; for a smoke run, generated data of a size that needs no download."""
    values: dict[str, Any] = load_config("census").model_dump()
    if quick:
        options = {"rows": 4096, "test_rows": 256, "vocabulary": 256}
        values |= {"data": {"name": "synthetic", "options": options}}
        values["training"] |= {"batch_size": 256}
    # A constant rate needs no scheduler in the plain loop; benchmarks end long before the epochs do.
    values["training"] |= {"epochs": 10_000, "schedule": "constant"}
    # Snapshots are five moments of a run, no part of a step. Benchmarks g and d measure attacks and readers.
    values["attack"] |= {"snapshots": [], "informed": 0, "every": 1}
    for section, content in sections.items():
        values[section] = {**values[section], **content} if isinstance(content, dict) else content
    return build_config(values)


class Ticks(Observer):
    """An observer that takes turns with the other lanes after every step."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def on_step(self, step: int, epoch: int, loss: float, leak: float) -> None:
        """Count the step."""
        self._gate.tick(loss)

    def on_epoch(self, step: int, epoch: int, metrics: Any) -> None:
        """Leave the evaluation out."""
        self._gate.interrupt()


def split(gate: Gate, config: Config, journal: bool = False, data: DataFactory = open_data) -> None:
    """Train by `flower_vfl.run`; with `journal`, in a results folder with its journals."""
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="flower-vfl-benchmark-") as folder:
        run(config, out=f"{folder}/run" if journal else None, data=data, observers=(Ticks(gate),))


class _ProcessGrid(LocalGrid):
    """A grid whose parties are processes of their own."""

    def __init__(self, config: Config, parties: tuple[str, ...], data: DataFactory) -> None:
        super().__init__(make_client_app(config=config), len(parties), to_run_config(config))
        self._config, self._parties, self._data = config, parties, data

    def _handle(self, message: Message) -> None:
        offer = dict(message.content.config_records[OFFER])
        party = self._parties[message.metadata.dst_node_id - 2]
        process = PROCESSES.Process(target=_attend, args=(self._config, party, offer, self._data))
        process.start()
        process.join()
        self._replies[message.metadata.message_id] = Message(RecordDict(), reply_to=message)


def _attend(config: Config, party: str, offer: dict[str, Any], data: DataFactory) -> None:
    """Run a feature party in a process of its own."""
    torch.set_num_threads(1)
    secret = Secret.for_simulation(config.seed, party)
    machine = build_feature_party(party, config, data(config), secret, simulation=True)
    try:
        attend(ConfigRecord(offer), str(offer["session"]), machine, timeout=60.0)
    except Exception as error:  # noqa: BLE001 - the benchmark ends its sessions in the middle of training
        logging.getLogger(__name__).info("%s", error)


def split_processes(gate: Gate, config: Config, data: DataFactory = open_data) -> None:
    """Train over `stream`, each feature party in a process of its own."""
    logging.disable(logging.WARNING)
    _train(config, gate, {}, data)


def over_a_link(gate: Gate, config: Config, round_trip: float, megabits: float) -> dict[str, Any]:
    """Train as `split_processes` over a link with a round trip, in seconds, and a rate; return the cost of the run."""
    logging.disable(logging.WARNING)
    transport = config.transport.model_copy(update={"port": free_port(), "advertise": ADDRESS})
    gate.settle = 2 * (transport.in_flight or LIMIT)  # they go on while other lanes have their turn
    cost: dict[str, Any] = {}
    with slow_link(transport.port, round_trip=round_trip, megabits=megabits), contextlib.suppress(Enough):
        _train(config.model_copy(update={"transport": transport}), gate, cost)
    return cost


def _train(config: Config, gate: Gate, cost: dict[str, Any], data: DataFactory = open_data) -> None:
    grid = _ProcessGrid(config, party_names(config, data(config)), data)
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=to_run_config(config))

    def note(result: RunResult) -> None:
        cost.update(result.summary["cost"])

    make_server_app(config=config, data=data, observers=(Ticks(gate),), on_result=note)(grid, context)


def joined(gate: Gate, config: Config, opened: DataFactory = open_data) -> None:
    """Train the same network on the same batches in one plain PyTorch loop, as a user with all the data would.

    On a GPU its batches are loaded ahead as those of a split run are, so that only the step is compared.
    """
    with computing(config):
        _plain_loop(gate, config, opened, parted=False)


def parted(gate: Gate, config: Config, opened: DataFactory = open_data) -> None:
    """Train as `joined`, with one optimizer and one backward pass a party, as split learning has it."""
    with computing(config):
        _plain_loop(gate, config, opened, parted=True)


def alternating(gate: Gate, config: Config, opened: DataFactory = open_data) -> None:
    """Train as `parted` in split learning's order: each party makes its step and at once embeds its next batch.

    All parties of the network must send embeddings, and the labels must have more than two classes.
    """
    with computing(config):
        data, placement = opened(config), Placement.of(config)
        bottoms, tables, top = networks(config, data)
        schedule = schedule_of(config, data.alignment.rows, data.alignment.test_rows)
        placement.place(nn.ModuleList([*bottoms.values(), top])).train()
        optimizers = {
            name: plain_optimizers(module, config.training.learning_rate)
            for name, module in [*bottoms.items(), ("", top)]
        }
        labels = torch.from_numpy(data.labels().train).long()
        loaders = {party: Loader(table.train, schedule, placement) for party, table in tables.items()}

        def update(name: str, backward: Callable[[], None]) -> None:
            for optimizer in optimizers[name]:
                optimizer.zero_grad()
            backward()
            for optimizer in optimizers[name]:
                optimizer.step()

        sent = {party: placement.forward(bottom, *loaders[party].batch(0)) for party, bottom in bottoms.items()}
        for step in range(schedule.steps - 1):
            outputs = {party: z.detach().requires_grad_() for party, z in sent.items()}
            logits = placement.forward(top, fuse(list(outputs.values()), config.model.fusion))
            loss = nn.functional.cross_entropy(logits, labels[schedule.train_batch(step)])
            update("", loss.backward)
            for party, bottom in bottoms.items():
                update(party, partial(sent[party].backward, outputs[party].grad))
                sent[party] = placement.forward(bottom, *loaders[party].batch(step + 1))
            gate.tick(loss.item())
        raise Enough


def numbers(config: Config) -> MemoryData:
    """Return 32,768 rows of 784 random numbers, as many as a digit has pixels, parted evenly, and ten classes."""
    rng, rows, names = np.random.default_rng(0), 32_768, config.parties.features
    shape = (rows + 1_024, 784 // len(names))
    columns = {name: rng.random(shape, dtype=np.float32) for name in names}
    tables = {name: array_table(name, x[:rows], x[rows:]) for name, x in columns.items()}
    labels = rng.integers(0, 10, shape[0])
    return MemoryData("numbers", tables, "label", Labels(labels[:rows], labels[rows:], 10))


def networks(config: Config, data: VerticalData) -> tuple[dict[str, nn.Module], dict[str, PartyTable], nn.Module]:
    """Return each party's bottom model, its table, and the top model, with the weights that a run begins with."""
    parties = list(party_names(config, data))
    holder = data.label_party
    own = holder if config.parties.label_features and holder in data.parties and holder not in parties else ""
    bottoms, tables, classes = {}, {}, data.labels().classes
    for party in [*parties, *([own] if own else [])]:
        secret = Secret.for_simulation(config.seed, "label" if party == own else party)
        tables[party] = data.party(party)
        with seeded_initialisation(secret.seed(*(("weights", "bottom") if party == own else ("weights",)))):
            spec = tables[party].spec
            bottoms[party] = default_own(spec, classes, config) if party == own else default_bottom(spec, config)
        bind_dropout(bottoms[party], secret.generator("dropout", device=config.device))
    few = schedule_of(config, data.alignment.rows, data.alignment.test_rows).train_batch(0)[:2]
    with torch.no_grad():
        shapes = [
            tuple(bottom.eval()(*tables[party].train.gather(few)).shape[1:])
            for party, bottom in bottoms.items()
            if not adds_to_logits(bottom)
        ]
    with seeded_initialisation(Secret.for_simulation(config.seed, "label").seed("weights", "top")):
        top = default_top(fused_shape(shapes, config.model.fusion), classes, config)
    return bottoms, tables, top


def _plain_loop(gate: Gate, config: Config, opened: DataFactory, *, parted: bool) -> None:
    data, placement = opened(config), Placement.of(config)
    bottoms, tables, top = networks(config, data)
    adding = [party for party, bottom in bottoms.items() if adds_to_logits(bottom)]
    schedule = schedule_of(config, data.alignment.rows, data.alignment.test_rows)
    network = placement.place(nn.ModuleList([*bottoms.values(), top])).train()
    optimizers = [
        optimizer
        for module in (network if parted else [network])
        for optimizer in plain_optimizers(module, config.training.learning_rate)
    ]
    labels, several = torch.from_numpy(data.labels().train), data.labels().classes > 2
    loss_of = nn.functional.cross_entropy if several else nn.functional.binary_cross_entropy_with_logits
    loaders = {party: Loader(table.train, schedule, placement) for party, table in tables.items()}
    for step in range(schedule.steps):
        truth = labels[schedule.train_batch(step)]
        truth = (truth.long() if several else truth.float()).to(config.device, non_blocking=True)
        sent = {party: placement.forward(bottom, *loaders[party].batch(step)) for party, bottom in bottoms.items()}
        outputs = {party: z.detach().requires_grad_() for party, z in sent.items()} if parted else sent
        parts = [z for party, z in outputs.items() if party not in adding]
        logits = placement.forward(top, fuse(parts, config.model.fusion))
        logits = sum((outputs[party] for party in adding), logits)
        loss: Tensor = loss_of(logits, truth)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for party in sent if parted else ():
            sent[party].backward(outputs[party].grad)
        for optimizer in optimizers:
            optimizer.step()
        gate.tick(loss.item())
    raise Enough


def plain_optimizers(network: nn.Module, rate: float) -> list[torch.optim.Optimizer]:
    """Return Adam for dense weights and SparseAdam for embeddings."""
    tables = (nn.Embedding, nn.EmbeddingBag)
    sparse = [part.weight for part in network.modules() if isinstance(part, tables) and part.sparse]
    known = {id(weight) for weight in sparse}
    dense = [weight for weight in network.parameters() if id(weight) not in known]
    optimizers: list[torch.optim.Optimizer] = [torch.optim.Adam(dense, lr=rate)]
    return optimizers + ([torch.optim.SparseAdam(sparse, lr=rate)] if sparse else [])
