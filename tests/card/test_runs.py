"""A run on a GPU gives the results of main memory, and waits for the GPU only where it must."""

import math

import pytest

from flower_vfl.apps.local import run
from flower_vfl.config import build_config
from flower_vfl.config.schema import ModelConfig
from tests.card.device import card, counting
from tests.faults.common import ATTACKER_EPOCHS, Interrupt
from tests.toys import mixed_data, text_data, toy_config, toy_data

ON_GRADIENTS = [
    *("norm", "cosine", "inner_product", "direction_count", "residual"),
    *("hint(k=3)", "hint(k=2,measure=distance)", "hint(k=1,measure=cosine)"),
]
ON_STEPS = [*ON_GRADIENTS, "spectral"]
TRAINED = ["spectral", "clustering", "model_completion(k=2,draws=1)", "embedding_reader(k=8,draws=1)"]
REMEMBERING = [
    *("remembered_norm", "remembered_direction", "remembered_hint", "remembered_difference"),
    *("remembered_fit(k=32)", "remembered_quadratic(k=32)", "remembered_network(k=32)"),
]


ROWS = {"rows": 256, "test_rows": 64}


def columns():
    return mixed_data(**ROWS)


def paper(network, **more):
    model = ModelConfig().model_dump() | {"network": network} | more
    return {"model": model, "training": {"batch_size": 24, "eval_batch_size": 32}}


def images(*shape, classes=2):
    return lambda: toy_data(48, 24, 1, shape, classes=classes)


RUNS = {
    "none": (columns, {}, "", ON_STEPS),
    "iso": (columns, {"model": {"dropout": 0.2}}, "iso(t=1.0)", ON_STEPS),
    "max_norm": (columns, {"training": {"embedding_decay": 0.01}}, "max_norm", ON_STEPS),
    "marvell": (columns, {"transport": {"in_flight": 3}}, "marvell(s=1.0)", ON_STEPS),
    "marvell, a target": (columns, {"training": {"clip_norm": 0.01}}, "marvell(sum_kl=1.0)", ON_GRADIENTS),
    "marvell, persistent": (columns, {"transport": {"in_flight": 0}}, "marvell(s=4.0,rho=0.5)", ON_GRADIENTS),
    "marvell, several parties": (
        lambda: toy_data(**ROWS, parties=3),
        {"parties": {"colluding": ["a+b"]}},
        "marvell(s=1.0,scope=per-party)",
        ON_GRADIENTS,
    ),
    "marvell, many classes": (
        lambda: toy_data(**ROWS, classes=4),
        {},
        "marvell(s=4.0)",
        ["norm", "cosine", "gradient_clustering"],
    ),
    "marvell_full": (columns, {"attack": {"every": 2, "snapshots": [3]}}, "marvell_full(s=1.0)", ON_STEPS),
    "marvell_full, imitating": (columns, {}, "marvell_full(s=4.0,imitate=true)", ["norm"]),
    "marvell_full, several parties": (
        lambda: toy_data(**ROWS, parties=3),
        {"parties": {"colluding": ["a+b"]}},
        "marvell_full(s=1.0,scope=per-party)",
        ["norm"],
    ),
    "potential energy": (columns, {}, "potential_energy", TRAINED),
    "distance correlation": (
        lambda: toy_data(**ROWS, classes=3),
        {},
        "distance_correlation(alpha=1.0,form=squared)",
        TRAINED[1:],
    ),
    "label noise": (columns, {"training": {"optimizer": "sgd"}}, "marvell(s=1.0),label_dp", ["norm"]),
    "remembering": (columns, {"training": {"epochs": 3}}, "marvell(s=4.0)", REMEMBERING),
    "informed readers": (columns, {"attack": {"informed": 2}}, "marvell_full(s=4.0)", ["direction", "shell"]),
    "columns": (columns, {}, "max_norm", ["joint_regression", "joint_reader(k=16)"]),
    "randomised labels": (
        columns,
        {"training": {"pretrain": 2, "refit": 2, "patience": 0}, "attack": {"informed": 2}},
        "local_head(epsilon=4.0)",
        ["norm"],
    ),
    "no gradients": (columns, {"training": {"pretrain": 2, "gradients": False}}, "", []),
    "numbers in bins": (columns, {"model": {"numeric_embedding": "bins"}}, "marvell(s=1.0)", ON_GRADIENTS),
    "ensemble": (columns, {"model": {"ensemble": 2}}, "marvell(s=1.0)", TRAINED),
    "wide and deep": (
        columns,
        {"model": {"network": "wide-deep"}, "training": {"class_weights": "balanced"}},
        "marvell(s=1.0)",
        ON_GRADIENTS,
    ),
    "tables in main memory": (columns, {"model": {"embedding_device": "cpu"}}, "marvell(s=1.0)", ON_STEPS),
    "wide tables in main memory": (
        columns,
        {
            "model": {"network": "wide-deep", "embedding_device": "cpu"},
            "training": {"clip_norm": 0.01, "embedding_decay": 0.01},
        },
        "iso(t=1.0)",
        ON_GRADIENTS,
    ),
    "texts": (text_data, paper("textcnn", cut=12), "", ["clustering"]),
    "texts, words in main memory": (text_data, paper("textcnn", cut=12, embedding_device="cpu"), "", ["clustering"]),
    "isic": (images(3, 84, 84), paper("isic"), "marvell(s=1.0)", ON_GRADIENTS),
    "isic, full": (images(3, 84, 84), paper("isic"), "marvell_full(s=1.0)", ["norm"]),
    "fashion": (images(1, 28, 28), paper("fashion"), "", ON_GRADIENTS),
    "cifar10": (images(3, 32, 32), paper("resnet20"), "marvell(s=1.0)", ON_GRADIENTS),
    "mnist": (images(1, 28, 28, classes=4), paper("mnist"), "potential_energy", ["clustering"]),
}


def config_of(sections, defenses, attacks):
    sections = {name: dict(section) for name, section in sections.items()}
    sections["attack"] = {"names": attacks, **sections.get("attack", {})}
    return build_config(toy_config(**sections).model_dump(), {"defenses": defenses})


def numbers(summary):
    """Return the values of a result by their paths."""
    found, pending = {}, [((key,), summary[key]) for key in ("utility", "leakage")]
    while pending:
        path, value = pending.pop()
        if isinstance(value, dict):
            pending += [((*path, key), item) for key, item in value.items()]
        elif isinstance(value, list):
            pending += [((*path, index), item) for index, item in enumerate(value)]
        else:
            found[path] = value
    return found


def differences(found, expected):
    """Return the values that differ between two results, by their paths; floats may differ by rounding."""
    found, expected = numbers(found), numbers(expected)
    assert found.keys() == expected.keys()
    equal = {path for path, value in expected.items() if found[path] == value or isinstance(value, float)}
    equal -= {
        path
        for path in equal
        if found[path] != expected[path] and not math.isclose(found[path], expected[path], rel_tol=1e-6)
    }
    return {path: (found[path], expected[path]) for path in expected.keys() - equal}


def on_gpu(config, data, **more):
    with card() as device:
        return run(config.model_copy(update={"device": device}), data=lambda _: data, **more)


QUICK = {"none", "marvell", "marvell_full", "wide and deep", "tables in main memory", "fashion"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in RUNS])
def test_a_run_ends_with_the_same_weights_and_leaks_as_much(name, monkeypatch):
    monkeypatch.setattr("flower_vfl.attacks.embedding.model_completion.MOST_EPOCHS", ATTACKER_EPOCHS)
    make, *rest = RUNS[name]
    config, data = config_of(*rest), make()
    in_memory, on_device = run(config, data=lambda _: data).summary, on_gpu(config, data).summary
    assert on_device["weights"] == in_memory["weights"]
    assert not differences(on_device, in_memory)


@pytest.mark.slow
def test_an_interrupted_run_continues(tmp_path):
    config, data = config_of({"checkpoint": {"every": 4}}, "marvell(s=1.0)", ON_STEPS), mixed_data()
    undisturbed = on_gpu(config, data).summary
    with pytest.raises(KeyboardInterrupt):
        on_gpu(config, data, out=tmp_path / "run", observers=(Interrupt(10),))
    resumed = on_gpu(config, data, out=tmp_path / "run", resume=True).summary
    assert resumed["weights"] == undisturbed["weights"]
    assert not differences(resumed, undisturbed)


CHECKED = {"tensors.is_finite": 3, "label._finite": 1}
"""Waits of every step: embeddings, loss with gradients, sent and received tensors must be finite."""
FOLLOWED = {"tensors.is_finite": 4, "attacker.Attacker._follow_alone": 1}
"""Waits of oracle attacks behind a defense: the reference is finite, and its row alone has the same embedding."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("defenses", "attacks", "expected"),
    [
        ("", [], CHECKED),
        ("", ["norm", "direction_count", "residual", "hint(k=3)"], CHECKED),
        ("", ON_GRADIENTS, CHECKED | {"tensors.is_finite": 4, "attacker._holds": 1}),
        ("iso(t=1.0)", ON_GRADIENTS, CHECKED | FOLLOWED | {"iso._perturb": 1, "tensors.brought": 1}),
        ("max_norm", ON_GRADIENTS, CHECKED | FOLLOWED | {"max_norm._perturb": 1, "tensors.brought": 1}),
        ("marvell(s=1.0)", ON_GRADIENTS, CHECKED | FOLLOWED | {"tensors.brought": 2}),
        (
            "marvell_full(s=1.0)",
            ON_GRADIENTS,
            CHECKED | FOLLOWED | {"tensors.brought": 3},
        ),
        ("label_dp", ON_GRADIENTS, CHECKED | {"tensors.is_finite": 4, "attacker._holds": 1}),
        (
            "potential_energy",
            [],
            CHECKED | {"pairs.sort_by_class": 1, "regulariser.Regulariser.loss": 1},
        ),
    ],
)
def test_a_step_waits_only_for_what_it_must_know(defenses, attacks, expected):
    data, waits = mixed_data(200, 40), []
    for epochs in (1, 2):
        config = config_of({"training": {"epochs": epochs, "batch_size": 20, "validation": 0.0}}, defenses, attacks)
        with counting() as counted:
            on_gpu(config, data)
        waits.append(counted)
    steps = 200 // 20
    in_a_step = {name: (count - waits[0][name]) / steps for name, count in waits[1].items()}
    assert {name: round(each) for name, each in in_a_step.items() if each >= 0.75} == expected


def test_one_wait_brings_the_scores_of_sixteen_steps():
    data, counts = mixed_data(400, 40), {}
    for attacks in ([], ["norm", "direction_count", "hint(k=3)", "hint(k=2,measure=distance)", "residual"]):
        training = {"epochs": 1, "batch_size": 20, "validation": 0.0}
        config = config_of({"training": training, "attack": {"monitor": False}}, "", attacks)
        with counting() as waits:
            on_gpu(config, data)
        counts[len(attacks)] = waits["tensors.brought"]
    assert counts == {0: 0, 5: 2}  # 20 steps: once after sixteen, once at the end


def test_gpu_memory_of_steps_that_are_not_scored_yet_is_bounded(monkeypatch):
    data = mixed_data()
    config = config_of({"training": {"epochs": 1}, "attack": {"monitor": False}}, "", ["norm"])
    steps = on_gpu(config, data).summary["cost"]["steps"]
    monkeypatch.setattr("flower_vfl.auditing.evaluator.MOST_PENDING_BYTES", 1)
    with counting() as waits:
        on_gpu(config, data)
    assert waits["tensors.brought"] == steps
