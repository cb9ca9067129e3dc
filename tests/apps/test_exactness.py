"""The split run against one joined network trained by a plain PyTorch loop: equal weights, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from flower_vfl.apps import run
from flower_vfl.apps.factories import default_bottom, default_own, default_top
from flower_vfl.config.schema import ModelConfig
from flower_vfl.nn import bind_dropout, seeded_initialisation
from flower_vfl.nn.digest import weights_digest
from flower_vfl.rng import Secret
from flower_vfl.training.factories import schedule_of
from tests.cases import parametrize
from tests.toys import mixed_data, text_data, toy_config, toy_data

# The default values of the model keys that `toy_config` sets.
DEFAULT_MODEL = ModelConfig().model_dump(include=toy_config().model.model_fields_set)


def rounded(tensor, wire_dtype):
    """Return a tensor rounded to half precision; to float16 in units of each row's largest value."""
    if wire_dtype == "bfloat16":
        return tensor.bfloat16().float()
    values = tensor.numpy()
    unit = np.abs(values).max(axis=tuple(range(1, values.ndim)), keepdims=True)
    unit[unit == 0] = 1
    return torch.from_numpy((values / unit).astype(np.float16).astype(np.float32) * unit)


class Wire(torch.autograd.Function):
    """The cut as a wire that rounds embeddings and gradients."""

    @staticmethod
    def forward(ctx, z, wire_dtype):
        ctx.wire_dtype = wire_dtype
        return rounded(z, wire_dtype)

    @staticmethod
    def backward(ctx, gradient):
        return rounded(gradient, ctx.wire_dtype), None


def frozen_embeddings(bottom, table, size):
    """Return the embeddings of all training rows in batches of an evaluation, on which their last bits may depend."""
    with torch.no_grad():
        return torch.cat(
            [
                bottom.eval()(*table.train.gather(np.arange(low, min(low + size, len(table.train)))))
                for low in range(0, len(table.train), size)
            ]
        )


def train_joined(config, data, parties, own=""):
    """Return weight digests of one joined network; of the split run it uses the seeds and the order of batches only."""
    config = config.fitted(len(data.target.train))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    bottoms, tables = {}, {}
    for party in [*parties, *([own] if own else [])]:
        secret = Secret.for_simulation(config.seed, "label" if party == own else party)
        purpose = ("weights", "bottom") if party == own else ("weights",)
        tables[party] = data.party(party)
        with seeded_initialisation(secret.seed(*purpose)):
            spec = tables[party].spec
            own_part = party == own
            bottoms[party] = (
                default_own(spec, data.target.classes, config) if own_part else default_bottom(spec, config)
            )
        bind_dropout(bottoms[party], secret.generator("dropout"))
    deep = parties if config.model.network == "wide-deep" else list(bottoms)
    schedule = schedule_of(config, data.alignment.rows, data.alignment.test_rows)
    rows = schedule.train_batch(0)[:2]
    with torch.no_grad():
        shapes = [tuple(bottoms[p].eval()(*tables[p].train.gather(rows)).shape[1:]) for p in deep]
    joined = shapes[0] if config.model.fusion != "concat" else (sum(s[0] for s in shapes), *shapes[0][1:])
    with seeded_initialisation(Secret.for_simulation(config.seed, "label").seed("weights", "top")):
        top = default_top(joined, data.target.classes, config)
    network = nn.ModuleList([*bottoms.values(), top])
    sparse = [m.weight for m in network.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    dense = [p for p in network.parameters() if not any(p is s for s in sparse)]
    optimizers = [torch.optim.Adam(dense, lr=config.training.learning_rate)]
    optimizers += [torch.optim.SparseAdam(sparse, lr=config.training.learning_rate)] if sparse else []
    labels = torch.from_numpy(data.target.train)
    network.train()

    def forward(part, *inputs):
        with torch.autocast("cpu", torch.bfloat16, enabled=config.precision == "bfloat16"):
            return part(*inputs).float()

    frozen = {} if config.training.gradients else {party: bottoms[party] for party in parties}
    size = config.training.eval_batch_size
    fixed = {party: frozen_embeddings(bottom, tables[party], size) for party, bottom in frozen.items()}
    for step in range(schedule.steps):
        rows = schedule.train_batch(step)
        z = [
            fixed[party][rows] if party in fixed else forward(bottoms[party], *tables[party].train.gather(rows))
            for party in deep
        ]
        if config.transport.wire_dtype != "exact":
            z = [Wire.apply(embedding, config.transport.wire_dtype) for embedding in z]
        if config.model.fusion == "concat":
            fused = torch.cat(z, dim=1)
        else:
            fused = sum(z[1:], start=z[0])
            fused = fused / len(z) if config.model.fusion == "mean" and len(z) > 1 else fused
        logits = forward(top, fused)
        for party in set(bottoms) - set(deep):
            logits = logits + forward(bottoms[party], *tables[party].train.gather(rows))
        if data.target.classes == 2:
            loss = nn.functional.binary_cross_entropy_with_logits(logits, labels[rows].float())
        else:
            loss = nn.functional.cross_entropy(logits, labels[rows])
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    torch.set_num_threads(before)
    label = {"top": top, **({"bottom": bottoms[own]} if own else {})}
    return {"label": weights_digest(nn.ModuleDict(label)), **{p: weights_digest(bottoms[p]) for p in parties}}


@parametrize(
    ("fusion", "parties", "shape"),
    [
        *((fusion, parties, (6,)) for fusion in ("concat", "sum", "mean") for parties in (1, 2, 4)),
        *((fusion, 3, (2, 6, 6)) for fusion in ("concat", "sum", "mean")),
    ],
    quick=1,
)
def test_the_split_network_ends_with_the_weights_of_the_joined_one(parties, shape, fusion):
    data = toy_data(rows=300, parties=parties, shape=shape)
    config = toy_config(model={"fusion": fusion})
    assert run(config, data=lambda _: data).summary["weights"] == train_joined(config, data, data.parties)


def test_convolutions_on_both_sides_of_the_cut_end_with_the_joined_weights():
    data = toy_data(rows=200, parties=1, shape=(1, 8, 8))
    config = toy_config(model={"channels": [6, 5, 4], "cut": 3, "pools": 2, "top_channels": [4, 4]})
    assert run(config, data=lambda _: data).summary["weights"] == train_joined(config, data, data.parties)


@parametrize(
    ("network", "split"),
    [
        ("mnist", ""),
        ("mnist", "layer1"),
        ("fashion", ""),
        ("fashion", "conv1"),
        ("resnet20", ""),
        ("resnet20", "group2"),
    ],
    quick=1,
)
@pytest.mark.parametrize("classes", [2, 4])
def test_the_networks_of_the_papers_end_with_the_joined_weights(network, split, classes):
    data = toy_data(48, 24, 1, (3, 32, 32) if network == "resnet20" else (1, 28, 28), classes=classes)
    step_attacks = ["norm", "cosine"] if classes == 2 else []
    config = toy_config(
        model=DEFAULT_MODEL | {"network": network, "split": split},
        training={"batch_size": 16, "eval_batch_size": 16},
        attack={"names": [*step_attacks, "clustering"], "snapshots": [1, 3]},
    )
    assert run(config, data=lambda _: data).summary["weights"] == train_joined(config, data, data.parties)


@parametrize("classes", [2, 3], quick=1)
def test_a_split_text_network_equals_the_joined_one_and_its_labels_are_read(classes):
    data = text_data(200, 100, classes=classes)
    config = toy_config(
        model=DEFAULT_MODEL | {"network": "textcnn", "cut": 12},
        training={"epochs": 12, "batch_size": 16, "learning_rate": 0.01},
        attack={"names": ["clustering", "model_completion(k=8,draws=2)", *(["norm"] if classes == 2 else [])]},
    )
    summary = run(config, data=lambda _: data).summary
    assert summary["weights"] == train_joined(config, data, data.parties)
    assert summary["utility"]["last"]["test_accuracy"] > 0.9
    means = {(entry["label"], entry["layer"]): entry["mean"] for entry in summary["leakage"]}
    assert means["model_completion(k=8,draws=2)", "cut"] > 0.8
    assert ("clustering", "first") in means


@parametrize("in_flight", [1, 2], quick=1)
def test_running_statistics_count_every_batch_once_over_every_transport(in_flight):
    data = toy_data(48, 24, 1, (3, 32, 32))
    weights, made = [], []

    def bottom(spec, config):
        made.append(default_bottom(spec, config))
        return made[-1]

    for kind in ("inproc", "stream", "messages"):
        config = toy_config(
            model=DEFAULT_MODEL | {"network": "resnet20", "split": "group1"},
            training={"batch_size": 16, "eval_batch_size": 16},  # 43 rows to train on, two epochs
            transport={"kind": kind, "in_flight": in_flight},
        )
        weights.append(run(config, bottom=bottom, data=lambda _: data).summary["weights"])
        assert made[-1].stem[1].num_batches_tracked == 2 * 3
    assert weights[0] == weights[1] == weights[2]


@parametrize(
    "model",
    [{}, {"network": "wide-deep", "top": [16, 16]}, {"dropout": 0.3, "bottom": [16, 16]}],
    ids=["plain", "wide", "dropout"],
    quick=1,
)
def test_a_label_party_with_columns_of_its_own_ends_with_the_joined_weights(model):
    data = mixed_data()
    config = toy_config(model=model)
    assert run(config, data=lambda _: data).summary["weights"] == train_joined(config, data, ["a"], own="b")


def test_without_gradients_heads_learn_from_frozen_embeddings():
    for data, parties, own in ((mixed_data(), ["a"], "b"), (toy_data(parties=2), ["a", "b"], "")):
        config = toy_config(training={"gradients": False})
        assert run(config, data=lambda _, d=data: d).summary["weights"] == train_joined(config, data, parties, own=own)


def test_more_than_two_classes_are_exact_too():
    data = toy_data(classes=4)
    config = toy_config(attack={"names": []})
    assert run(config, data=lambda _: data).summary["weights"] == train_joined(config, data, data.parties)


@parametrize(("in_flight", "ensemble"), [(1, 1), (3, 1), (3, 2)], quick=1)
def test_all_transports_give_identical_weights(in_flight, ensemble):
    data = mixed_data()
    weights = []
    for kind in ("inproc", "stream", "messages"):
        config = toy_config(
            transport={"kind": kind, "in_flight": in_flight},
            model={"dropout": 0.2, "bottom": [16, 16], "ensemble": ensemble},
        )
        weights.append(run(config, data=lambda _: data).summary["weights"])
    assert weights[0] == weights[1] == weights[2]


def test_the_number_of_steps_in_flight_changes_the_weights_and_nothing_else_does():
    data = toy_data()
    one, three, again = (
        run(toy_config(transport={"in_flight": w}), data=lambda _: data).summary["weights"] for w in (1, 3, 3)
    )
    assert three == again
    assert one != three


@parametrize("wire_dtype", ["float16", "bfloat16"], quick=1)
def test_half_precision_on_the_wire_rounds_at_the_cut_and_nowhere_else(wire_dtype):
    data = toy_data(rows=300)
    found = {}
    for kind in ("stream", "messages"):
        config = toy_config(transport={"kind": kind, "wire_dtype": wire_dtype}, attack={"names": ["norm", "cosine"]})
        found[kind] = run(config, data=lambda _: data).summary
    expected = train_joined(config, data, data.parties)
    assert found["stream"]["weights"] == found["messages"]["weights"] == expected
    assert expected != train_joined(toy_config(), data, data.parties)
    exact = run(toy_config(transport={"kind": "stream"}), data=lambda _: data).summary
    assert found["stream"]["cost"]["bytes_up"] < exact["cost"]["bytes_up"]
    assert all(entry["q95"] > 0.5 for entry in found["stream"]["leakage"])


@parametrize(
    ("make", "sections"),
    [
        (lambda: toy_data(rows=300), {}),
        (lambda: toy_data(rows=200, parties=1, shape=(1, 8, 8)), {"model": {"channels": [4], "top_channels": [4]}}),
        (mixed_data, {"model": {"dropout": 0.2}}),
    ],
    ids=["vectors", "feature maps", "tables"],
    quick=1,
)
def test_passes_in_bfloat16_are_those_of_the_joined_network_on_every_transport(make, sections):
    data, found = make(), []
    for kind in ("inproc", "stream"):
        config = toy_config(precision="bfloat16", transport={"kind": kind}, **sections)
        found.append(run(config, data=lambda _: data).summary)
    own = "b" if make is mixed_data else ""
    expected = train_joined(config, data, [party for party in data.parties if party != own], own)
    assert found[0]["weights"] == found[1]["weights"] == expected
    whole = run(toy_config(**sections), data=lambda _: data).summary
    assert whole["weights"] != expected
    assert found[0]["cost"]["bytes_up"] == whole["cost"]["bytes_up"]  # what crosses the cut is in single precision


def test_another_seed_gives_other_weights():
    data = toy_data()
    first, second = (run(toy_config(seed=seed), data=lambda _: data).summary["weights"] for seed in (0, 1))
    assert all(first[party] != second[party] for party in first)


def test_attacks_and_the_monitor_change_no_weight():
    data = toy_data()
    attacked = run(toy_config(), data=lambda _: data)
    plain = run(toy_config(attack={"names": []}), data=lambda _: data)
    assert attacked.summary["leakage"]
    assert not plain.summary["leakage"]
    assert attacked.summary["weights"] == plain.summary["weights"]
