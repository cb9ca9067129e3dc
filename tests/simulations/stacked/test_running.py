"""Runs trained in a stack have the results that each has by itself."""

import json
import math

import numpy as np
import pytest
import torch

from flower_vfl.apps.folder import read_result
from flower_vfl.apps.local import run
from flower_vfl.apps.model import load_model, model_path
from flower_vfl.apps.run_state import is_begun
from flower_vfl.auditing.entries import CONDITIONAL
from flower_vfl.config import build_config
from flower_vfl.data.store.dataset import Labels
from flower_vfl.data.store.memory import MemoryData
from flower_vfl.errors import ArgumentError, ConfigError
from flower_vfl.simulations.stacked import running
from flower_vfl.simulations.stacked.member import Member
from flower_vfl.simulations.stacked.running import train_stack
from flower_vfl.simulations.sweep.grouping import obstacle
from flower_vfl.strategies import GradientDefense
from flower_vfl.tracking import read_embeddings, read_snapshots, read_steps
from tests.card import needs_card
from tests.toys import mixed_data, toy_config, toy_data

ATTACKS = ["norm", "cosine", "inner_product", "direction_count", "hint(k=3)", "hint(k=2,measure=distance)"]
ATTACKS += ["direction", "shell"]
SETTINGS = {
    "two parties": (toy_data, {}),
    "own columns": (mixed_data, {"model": {"dropout": 0.2}, "training": {"embedding_decay": 0.01}}),
    "wide and deep": (mixed_data, {"model": {"network": "wide-deep"}, "training": {"class_weights": "balanced"}}),
    "one attacker, every third step": (
        toy_data,
        {"parties": {"attackers": ["b"]}, "attack": {"every": 3, "layers": ["layers.0"]}},
    ),
    "classes in turn": (toy_data, {"attack": {"positives": [1, 0]}}),
    "numbers in bins": (mixed_data, {"model": {"numeric_embedding": "bins"}}),
    "ensemble": (mixed_data, {"model": {"ensemble": 2, "dropout": 0.2}}),
    "without monitor": (mixed_data, {"attack": {"monitor": False}, "model": {"fusion": "sum"}}),
}
DEFENSES = [
    "",
    "iso(t=1.0)",
    "iso(t=4.0,scope=per-party)",
    "max_norm",
    "marvell(s=1.0)",
    "marvell(s=4.0,scope=per-party)",
]
WEIGHTS, LOSS, LEAK, TIED = 1e-5, 1e-6, 0.01, 0.05
NARROW = 1e-3
"""The stated tolerances: of a weight (`NARROW` in a model with bins, whose slope amplifies rounding errors), of a loss
and a utility, of the leak AUC of one step (64 rows here), and of that AUC where rounding errors alone rank the rows, as
for cosines of gradients that max_norm scales."""


def configs(more, defenses, seeds):
    attack = {"names": ATTACKS, "snapshots": [5], "embeddings": 20}
    sections = {**more, "attack": {**attack, **more.get("attack", {})}}
    base = toy_config(**sections).model_dump()
    return [build_config(base, {"defenses": d, "seed": s}) for d, s in zip(defenses, seeds, strict=True)]


def curves(folder):
    rows = [row for row in read_steps(folder).to_pylist() if row["attack"] != CONDITIONAL]
    return {(*(row[k] for k in ("party", "layer", "attack", "metric", "step", "epoch")),): row["value"] for row in rows}


def by_place(result):
    return {(e["label"], e["party"], e["layer"], e["source"], e["defended"]): e for e in result["leakage"]}


def check_same(stacked, alone, *, snapshots=True):
    """Compare two folders of one run: every value of every step, weights, and what the reports show."""
    one, other = curves(stacked), curves(alone)
    assert one.keys() == other.keys()
    for key, value in other.items():
        metric = key[3]
        allowed = LOSS if not key[2] else TIED if key[2] == "cosine" else LEAK
        if metric.startswith("marvell"):
            allowed = 1e-4 * abs(value)
        if math.isnan(value) or math.isinf(value):
            assert str(one[key]) == str(value), key
        else:
            assert abs(one[key] - value) <= allowed, (key, one[key], value)
    results = [read_result(folder) for folder in (stacked, alone)]
    for result in results:  # a stack does not measure CONDITIONAL
        result["leakage"] = [entry for entry in result["leakage"] if entry["attack"] != CONDITIONAL]
    assert exact(results[0]["leakage"]) == exact(results[1]["leakage"])
    for mine, theirs in zip(results[0]["leakage"], results[1]["leakage"], strict=True):
        assert [mine[name] for name in _NUMBERS] == pytest.approx([theirs[name] for name in _NUMBERS], abs=TIED)
        if all(mine[name] == theirs[name] for name in ("q95", "q95_turned")):
            assert mine["q95_p_value"] == pytest.approx(theirs["q95_p_value"], abs=1e-12)
    assert results[0]["utility"]["last"] == pytest.approx(results[1]["utility"]["last"], abs=1e-6)
    assert results[0]["classes"] == results[1]["classes"] != {"names": ["0", "1"]}
    logs = [{name: -1.0 if value is None else value for name, value in entry["log"].items()} for entry in results]
    assert logs[0] == pytest.approx(logs[1], rel=1e-4)
    for party in results[0]["weights"]:
        tensors, expected = (load_model(model_path(folder, party)).tensors for folder in (stacked, alone))
        for name, tensor in expected.items():
            allowed = NARROW if any(key.endswith("numbers.knots") for key in expected) else WEIGHTS
            torch.testing.assert_close(tensors[name], tensor, rtol=allowed, atol=allowed)
    assert read_snapshots(stacked).num_rows == read_snapshots(alone).num_rows
    assert bool(read_snapshots(alone).num_rows) == snapshots
    assert len(read_embeddings(stacked)) == len(read_embeddings(alone)) > 0


_NUMBERS = ("q95", "q95_turned", "mean", "max", "detection_error_mean", "detection_error_q05")
_FOLLOWING = ("q95_p_value", "max_p_value", "steps_read", "steps_read_max", "macro_q95", "worst_class")
"""Keys that are computed from these numbers: where the numbers differ by rounding, these may differ by more."""


def exact(value):
    """Return the part of a result that must be equal to the last digit."""
    if isinstance(value, list):
        return [exact(entry) for entry in value]
    if isinstance(value, dict):
        return {k: exact(v) for k, v in value.items() if k not in (*_NUMBERS, *_FOLLOWING)}
    return value


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
def test_every_step_of_a_run_in_a_stack_is_that_of_the_run_by_itself(setting, tmp_path):
    make, more = SETTINGS[setting]
    data = make()
    runs = configs(more, DEFENSES, [0, 1, 0, 0, 1, 0])
    folders = [tmp_path / f"stacked-{number}" for number in range(len(runs))]
    assert train_stack(runs, folders, data=lambda _: data) == []
    for number, config in enumerate(runs):
        run(config, out=folders[number], resume=True, data=lambda _: data)
        run(config, out=tmp_path / f"alone-{number}", data=lambda _: data)
        check_same(folders[number], tmp_path / f"alone-{number}", snapshots=setting != "ensemble")
        cost = read_result(folders[number])["cost"]
        assert cost["together"] == len(runs)
        assert cost["steps"] == read_result(tmp_path / f"alone-{number}")["cost"]["steps"]


class ByConfidence(GradientDefense):
    """Noise that depends on the logits and embeddings of a step."""

    name = "by_confidence"

    def perturb(self, g, y, step=None):
        scale = step.logits.sigmoid()[:, None] * sum(z.flatten(1).abs().mean() for z in step.embeddings.values())
        return g + scale * torch.randn(g.shape, generator=self.generator(g.device)), {"scale": float(scale.mean())}


@pytest.mark.slow
@pytest.mark.parametrize("model", [{}, {"ensemble": 2}])
def test_a_defense_sees_the_logits_and_embeddings_of_a_step_in_a_stack_too(model, tmp_path):
    data = toy_data()
    runs = configs({"model": model}, [f"{__name__}:ByConfidence"] * 2, [0, 1])
    folders = [tmp_path / name for name in "ab"]
    assert train_stack(runs, folders, data=lambda _: data) == []
    for number, config in enumerate(runs):
        run(config, out=folders[number], resume=True, data=lambda _: data)
        run(config, out=tmp_path / f"alone-{number}", data=lambda _: data)
        check_same(folders[number], tmp_path / f"alone-{number}", snapshots=not model)
        assert read_result(folders[number])["cost"]["together"] == 2


@pytest.mark.slow
def test_informed_readers_reach_in_a_stack_what_they_reach_on_the_run_alone(tmp_path):
    data = toy_data(rows=800)
    runs = configs({"attack": {"informed": 5000, "names": ["norm"]}}, ["", "marvell_full(s=1.0)"], [0, 1])
    folders = [tmp_path / name for name in "ab"]
    assert train_stack(runs, folders, data=lambda _: data) == []
    for number, config in enumerate(runs):
        run(config, out=folders[number], resume=True, data=lambda _: data)
        run(config, out=tmp_path / f"alone-{number}", data=lambda _: data)
        one, other = curves(folders[number]), curves(tmp_path / f"alone-{number}")
        assert one.keys() == other.keys()
        assert {key[2] for key in one} >= {"informed", "remembered_direction"}
        found = [
            {(e["party"], *e["sees"]): e["mean"] for e in read_result(folder)["leakage"] if e["attack"] == "informed"}
            for folder in (folders[number], tmp_path / f"alone-{number}")
        ]
        assert len(found[0]) == 9  # of a, b and both: gradients, with embeddings, with columns
        assert found[0] == pytest.approx(found[1], abs=TIED)


def rare(rows=600):
    """Return data with so few positives that some batches have none."""
    data = toy_data(rows)
    labels = data.labels()
    train = np.where(np.arange(rows) % 29 == 0, labels.train, 0)
    return MemoryData("rare", data.tables, "label", Labels(train, labels.test, 2))


@pytest.mark.slow
def test_batches_of_one_class_are_protected_and_counted_as_in_the_run_by_itself(tmp_path):
    data = rare()
    runs = configs({"training": {"batch_size": 32}}, ["marvell(s=1.0)", "iso(t=1.0)", ""], [0, 0, 1])
    folders = [tmp_path / name for name in "abc"]
    train_stack(runs, folders, data=lambda _: data)
    result = run(runs[0], out=folders[0], resume=True, data=lambda _: data).summary
    alone = run(runs[0], out=tmp_path / "alone", data=lambda _: data).summary
    assert alone["leakage"][0]["one_class_steps"] > 0
    assert alone["log"]["marvell.fallback"] > 0
    check_same(folders[0], tmp_path / "alone")
    known = {key: entry["q95_null"] for key, entry in by_place(alone).items() if key[0] != CONDITIONAL}
    assert {key: entry["q95_null"] for key, entry in by_place(result).items()} == known


@pytest.mark.slow
def test_runs_with_full_marvell_are_in_a_stack_what_they_are_by_themselves(tmp_path):
    data = rare()
    given = [
        "marvell_full(s=1.0)", "marvell_full(s=4.0,scope=per-party)", "marvell_full(P=1e-3,rho=0.5)",
        "marvell_full(s=1.0,imitate=true)", "marvell(s=1.0)",
    ]  # fmt: skip
    more = {"training": {"batch_size": 32, "epochs": 1}, "attack": {"names": ["norm"]}}
    runs = configs(more, given, [0, 1, 0, 0, 2])
    assert [obstacle(config) for config in runs] == [""] * 5
    folders = [tmp_path / name for name in "abcde"]
    assert train_stack(runs, folders, data=lambda _: data) == []
    for name, config in zip("abcde", runs, strict=True):
        log = run(config, out=tmp_path / name, resume=True, data=lambda _: data).summary["log"]
        run(config, out=tmp_path / f"alone-{name}", data=lambda _: data)
        check_same(tmp_path / name, tmp_path / f"alone-{name}")
        assert any(value > 0 for metric, value in log.items() if ".fallback" in metric)


def test_attacks_on_the_trained_model_run_after_a_stack_as_after_a_single_run(tmp_path):
    data, runs = toy_data(), configs({"attack": {"names": ["norm", "clustering"]}}, ["", "max_norm"], [0, 0])
    folders = [tmp_path / "a", tmp_path / "b"]
    train_stack(runs, folders, data=lambda _: data)
    found = []
    for more in ({"out": folders[0], "resume": True}, {}):
        entries = run(runs[0], data=lambda _: data, **more).summary["leakage"]
        found.append({(e["party"], e["layer"]): e["mean"] for e in entries if e["phase"] == "inference"})
    assert found[0].keys() == found[1].keys() >= {("a", "cut"), ("b", "first")}
    assert found[0] == pytest.approx(found[1], abs=0.02)


@pytest.mark.slow
def test_a_run_that_diverges_is_reported_and_left_out_and_the_others_are_unchanged(tmp_path, monkeypatch):
    class Broken(Member):
        def __init__(self, config, dataset):
            super().__init__(config, dataset)
            if config.seed == 1:
                with torch.no_grad():
                    next(self.bottoms["a"].parameters()).fill_(torch.inf)

    data, runs = toy_data(), configs({}, ["iso(t=1.0)", "iso(t=1.0)", "marvell(s=1.0)"], [0, 1, 2])
    folders = [tmp_path / name for name in "abc"]
    monkeypatch.setattr(running, "Member", Broken)
    assert train_stack(runs, folders, data=lambda _: data) == [1]
    assert [is_begun(folder) for folder in folders] == [True, False, True]
    for name, config in zip("abc", runs, strict=True):  # the run that diverged is trained by itself in its folder
        run(config, out=tmp_path / name, resume=True, data=lambda _: data)
        run(config, out=tmp_path / f"alone-{name}", data=lambda _: data)
        check_same(tmp_path / name, tmp_path / f"alone-{name}")
    assert [read_result(folder)["cost"]["together"] for folder in folders] == [3, 1, 3]


def test_a_run_whose_last_step_breaks_its_predictions_is_left_out_too(tmp_path):
    """Its loss is finite: it was measured before the step."""
    data = toy_data(rows=300)
    broken = {"epochs": 1, "batch_size": 300, "optimizer": "sgd", "learning_rate": 1e30}
    runs = [toy_config(seed=seed, training=broken, attack={"names": ["norm"], "informed": 0}) for seed in (0, 1)]
    folders = [tmp_path / name for name in "ab"]
    assert train_stack(runs, folders, data=lambda _: data) == [0, 1]
    assert not any(map(is_begun, folders))


WRITER = """
from flower_vfl.attacks import NormAttack

class Writer(NormAttack):
    "Centres its input in place."
    name = "writer"
    def rate(self, rows, known):
        rows -= rows.mean(dim=-2, keepdim=True)
        return super().rate(rows, known)
"""


def test_an_attack_that_writes_into_its_input_ends_a_stack_by_its_name(tmp_path, install):
    install("own-parts", {"own_parts": WRITER})
    runs = configs({"attack": {"names": ["own_parts:Writer", "norm"]}}, ["", "iso(t=1.0)"], [0, 1])
    with pytest.raises(ConfigError, match="the attack 'writer' writes into what it is shown"):
        train_stack(runs, [tmp_path / "0", tmp_path / "1"], data=lambda _: toy_data(200))


ODD = """
from flower_vfl.attacks import NormAttack

class Odd(NormAttack):
    "Centres its scores."
    name = "odd"
    def rate(self, rows, known):
        found = super().rate(rows, known)
        {centre}
"""


@pytest.mark.parametrize(
    ("centre", "error", "words"),
    [
        ("return found - found.mean(0)", ConfigError, r"'odd': `rate` gives rows \(R, B, D\) of several runs other"),
        ("return found * float('nan')", ArgumentError, "'odd': scores of step 0 are NaN"),
    ],
    ids=["over runs", "NaN"],
)
def test_an_attack_that_a_stack_would_measure_wrongly_ends_it_by_its_name(centre, error, words, tmp_path, install):
    install("own-parts", {"own_parts": ODD.format(centre=centre)})
    runs = configs({"attack": {"names": ["own_parts:Odd"]}}, ["", "iso(t=1.0)"], [0, 1])
    with pytest.raises(error, match=words):
        train_stack(runs, [tmp_path / "0", tmp_path / "1"], data=lambda _: toy_data(200))


def test_a_stack_that_is_interrupted_leaves_runs_that_start_again(tmp_path):
    def interrupt(step, steps, loss):
        raise KeyboardInterrupt

    data, runs = toy_data(), configs({}, ["", "max_norm"], [0, 1])
    folders = [tmp_path / "a", tmp_path / "b"]
    with pytest.raises(KeyboardInterrupt):
        train_stack(runs, folders, data=lambda _: data, progress=interrupt)
    assert not any(map(is_begun, folders))
    train_stack(runs, folders, data=lambda _: data)
    assert all(map(is_begun, folders))
    assert run(runs[1], out=folders[1], resume=True, data=lambda _: data).status == "finished"
    assert json.loads((folders[1] / "result.json").read_text())["cost"]["together"] == 2


def test_more_than_two_classes_are_refused(tmp_path):
    data = toy_data(classes=3)
    runs = configs({"attack": {"names": []}}, ["", "iso(t=1.0)"], [0, 1])
    with pytest.raises(ConfigError, match="two classes"):
        train_stack(runs, [tmp_path / "a", tmp_path / "b"], data=lambda _: data)


@needs_card
def test_on_a_gpu_a_stack_gives_what_its_runs_give_there(tmp_path):
    data = mixed_data()
    runs = [config.model_copy(update={"device": "cuda"}) for config in configs({}, DEFENSES, [0, 1, 0, 0, 1, 0])]
    folders = [tmp_path / f"stacked-{number}" for number in range(len(runs))]
    assert train_stack(runs, folders, data=lambda _: data) == []
    for number, config in enumerate(runs):
        results = [
            run(config, data=lambda _: data, **more).summary["utility"]["last"]
            for more in ({"out": folders[number], "resume": True}, {})
        ]
        assert results[0] == pytest.approx(results[1], abs=1e-3)
