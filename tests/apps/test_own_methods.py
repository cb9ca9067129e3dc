"""A run with a defense and an attack of other packages: from a configuration to its results."""

from __future__ import annotations

import json

import pytest
import torch

from flower_vfl.apps import run
from flower_vfl.apps.label_party import defend
from flower_vfl.attacks import ATTACKS, make_attack, make_attacks
from flower_vfl.config import build_config, from_run_config, load_config, to_run_config
from flower_vfl.errors import ConfigError, FlowerVflError, PartyError
from flower_vfl.strategies import DEFENSES, VerticalStrategy
from tests.cases import parametrize
from tests.toys import toy_data

METHODS = """
from flower_vfl.attacks import Attack
from flower_vfl.strategies import GradientDefense

class Doubled(GradientDefense):
    "Doubles."
    name = "doubled"
    def __init__(self, strategy, times=2, *, scope="joint"):
        super().__init__(strategy, scope=scope)
        self.times = times
    @property
    def params(self):
        return {"times": self.times, **super().params}
    def perturb(self, g, y):
        return g * self.times, {}

class First(Attack):
    "Scores rows by one column."
    name = "first_column"
    def __init__(self, column=0):
        self.column = column
    def score(self, transcript, layer, side=None):
        return transcript.last.gradients[layer].flatten(1)[:, self.column].abs()
"""
DECLARED = """
[flower_vfl.defenses]
doubled = own_parts:Doubled
[flower_vfl.attacks]
first_column = own_parts:First
"""
SMALL = {
    "data": {"name": "toy"},
    "training": {"epochs": 1, "batch_size": 64},
    "model": {"cut": 4},
    "attack": {"informed": 0},
}


@pytest.mark.parametrize(
    ("defense", "attack"),
    [("own_parts:Doubled", "own_parts:First"), ("doubled", "first_column")],
    ids=["module:Class", "entry point"],
)
def test_a_run_uses_them_and_results_name_their_classes(defense, attack, install, tmp_path):
    install("own-parts", {"own_parts": METHODS}, DECLARED)
    overrides = {
        "defenses": f"{defense}(times=3), iso(t=1.0)",
        "attack.names": f"norm,{attack},{attack}(column=2)",
    }
    config = build_config(SMALL, overrides)
    assert config.defenses == [{"name": defense, "times": 3}, {"name": "iso", "t": 1.0}]
    assert config.attack.names == ["norm", attack, f"{attack}(column=2)"]
    data = toy_data(rows=200)
    run(config, out=tmp_path / "run", data=lambda _: data)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["defenses"] == [
        {
            "name": "doubled",
            "params": {"times": 3, "scope": "joint"},
            "read_by": ["norm", "direction"],
            "class": "own_parts:Doubled",
        },
        {
            "name": "iso",
            "params": {"t": 1.0, "rho": 0.0, "scope": "joint"},
            "read_by": ["norm", "remembered_direction", "remembered_scales"],
        },
    ]
    steps = [entry for entry in result["leakage"] if entry["phase"] == "train"]
    assert {(entry["label"], entry.get("class"), entry["source"]) for entry in steps} == {
        (label, whose, source)
        for label, whose in (
            ("norm", None),
            ("first_column", "own_parts:First"),
            ("first_column(column=2)", "own_parts:First"),
        )
        for source in ("attacker", "monitor")
    }
    assert load_config(str(tmp_path / "run" / "config.toml")) == config.fitted(result["dataset"]["rows"])


def test_the_configuration_reaches_the_parties_through_flowers_run_config():
    config = build_config(
        {
            "defenses": [{"name": "a.b:C.D", "bits": 4, "mode": "x, (y)"}, {"name": "iso"}],
            "attack": {"names": ["a_b.c:D(k=2,how=far)", "norm"]},
        }
    )
    assert from_run_config(to_run_config(config)) == config
    assert config.attack.calls == [{"name": "a_b.c:D", "k": 2, "how": "far"}, {"name": "norm"}]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"defenses": "own_parts:First"}, "a subclass of flower_vfl.strategies.Defense is needed"),
        (
            {"attack.names": "own_parts:Doubled"},
            "a subclass of flower_vfl.attacks.Attack or flower_vfl.attacks.InferenceAttack or "
            "flower_vfl.attacks.MemoryAttack or flower_vfl.attacks.JointAttack is needed",
        ),
        ({"defenses": "doubld"}, "did you mean 'doubled'? Allowed: distance_correlation, doubled, iso"),
        ({"attack.names": "first_colum"}, "did you mean 'first_column'?"),
        ({"defenses": "doubled(often=2)"}, "the defense 'doubled' cannot be made with {'often': 2}"),
        ({"attack.names": "first_column(row=2)"}, "the attack 'first_column' cannot be made with {'row': 2}"),
        ({"attack.names": "first_column,own_parts:First"}, "'first_column' is named twice"),
        ({"defenses": "flower_vfl.strategies:GradientDefense"}, "is abstract: the class must define perturb"),
        ({"defenses": "os:system"}, "os:system is <built-in function system>"),
    ],
)
def test_bad_names_and_parameters_are_bad_input(overrides, words, install):
    install("own-parts", {"own_parts": METHODS}, DECLARED)
    data = toy_data(rows=200)
    with pytest.raises(ConfigError) as caught:
        run(build_config(SMALL, overrides), data=lambda _: data)
    assert words in str(caught.value)


DECLARING = """
import math
from flower_vfl.attacks import Attack, InferenceAttack
from own_parts import Doubled, First

class Sets(Doubled):
    name, params = "sets", {"a": {1}}
class NoNumber(Doubled):
    name, params = "no_number", {"a": math.nan}
class Sees(First):
    name, params = "sees", {"a": {1}}
class Names(First):
    name, reads = "names", "classes"
class Silent(InferenceAttack):
    name = "silent"
    def infer(self, view):
        return view.embeddings[:, 0]
class Never(Silent):
    name, reads, draws = "never", "scores", 0
"""


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"defenses": "declaring:Sets"}, "the defense 'sets' shows `params` that result.json cannot hold: Object of"),
        ({"defenses": "declaring:NoNumber"}, "the defense 'no_number' shows `params` that result.json cannot hold"),
        ({"attack.names": "declaring:Sees"}, "the attack 'sees' shows `params` that result.json cannot hold"),
        ({"attack.names": "declaring:Names"}, "the attack 'names' reads 'classes': its `reads` is one of scores, clus"),
        ({"attack.names": "declaring:Silent"}, "the attack 'silent' reads None: its `reads` is one of scores, classes"),
        ({"attack.names": "declaring:Never"}, "never: draws is 0; give a whole number from 1"),
    ],
)
def test_what_no_method_can_declare_is_bad_input_before_the_first_step(overrides, words, install, tmp_path):
    install("own-parts", {"own_parts": METHODS})
    install("declaring", {"declaring": DECLARING})
    with pytest.raises(ConfigError) as caught:
        run(build_config(SMALL, overrides), data=lambda _: toy_data(rows=200), out=tmp_path / "run")
    assert words in str(caught.value)
    assert not (tmp_path / "run").exists()


SAYING = """
from own_parts import First
class Saying(First):
    name = "saying"
    def score(self, transcript, layer, side=None):
        g = transcript.last.gradients[layer]
        return {}
"""


@pytest.mark.parametrize("kind", ["inproc", "stream"])
@parametrize(
    ("scores", "words"),
    [
        ("g", r"the attack 'saying' returned (64, 4) for 64 rows: (64,) is needed"),
        ("g[:, 0] / 0 * 0", "the attack 'saying': 64 of 64 scores are NaN"),
        ("g[:, 0] + 0j", "the attack 'saying': The scores are complex64"),
        ("g[:-1, 0]", r"the attack 'saying' returned (63,) for 64 rows: (64,) is needed"),
    ],
    quick=1,
)
def test_an_error_about_the_scores_of_an_attack_names_the_attack(scores, words, kind, install):
    install("own-parts", {"own_parts": METHODS})
    install("saying", {"saying": SAYING.format(scores)})
    config = build_config(SMALL, {"attack.names": "saying:Saying", "transport.kind": kind})
    with pytest.raises(FlowerVflError) as caught:
        run(config, data=lambda _: toy_data(rows=200))
    assert words in str(caught.value)


MUTE = """
from flower_vfl.attacks import InferenceAttack
from own_parts import Doubled, First

class Mute(Exception):
    "An error whose text cannot be made, as where a method forgets a value of its message."
    def __str__(self):
        return f"the value is {self.value}"

class MuteDefense(Doubled):
    name = "mute_defense"
    def perturb(self, g, y):
        raise Mute
class MuteAttack(First):
    name = "mute_attack"
    def score(self, transcript, layer, side=None):
        raise Mute
class MuteReader(InferenceAttack):
    name, reads = "mute_reader", "scores"
    def infer(self, view):
        raise Mute
"""
NO_TEXT = "Mute: its text cannot be had (AttributeError)"


@pytest.mark.parametrize("kind", ["inproc", "stream", "messages"])
@pytest.mark.parametrize("overrides", [{"defenses": "mute:MuteDefense"}, {"attack.names": "mute:MuteAttack"}], ids=str)
def test_a_run_that_ends_by_an_error_without_a_text_leaves_its_result(overrides, kind, install, tmp_path):
    install("own-parts", {"own_parts": METHODS})
    install("mute", {"mute": MUTE})
    config = build_config(SMALL, {**overrides, "transport.kind": kind, "attack.monitor": "false"})
    with pytest.raises(Exception) as caught:  # noqa: PT011 - there is no text to match
        run(config, data=lambda _: toy_data(rows=200), out=tmp_path / "run")
    assert type(caught.value).__name__ == "Mute" or NO_TEXT in str(caught.value)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "failed"
    assert NO_TEXT in result["error"]


def test_a_reader_that_fails_without_a_text_makes_only_its_own_entry_unavailable(install):
    install("own-parts", {"own_parts": METHODS})
    install("mute", {"mute": MUTE})
    result = run(
        build_config(SMALL, {"attack.names": "mute:MuteReader"}),
        data=lambda _: toy_data(rows=200),
    ).summary
    assert result["status"] == "finished"
    assert {entry["unavailable"] for entry in result["leakage"]} == {NO_TEXT}


def test_two_classes_of_one_name_in_one_run_are_refused(install):
    install("own-parts", {"own_parts": METHODS})
    install("others", {"other_parts": METHODS})
    strategy = VerticalStrategy(torch.nn.Linear(4, 1), torch.tensor([0, 1]))
    with pytest.raises(ConfigError, match="both have the name 'doubled'"):
        defend(strategy, [{"name": "own_parts:Doubled"}, {"name": "other_parts:Doubled"}])
    with pytest.raises(ConfigError, match="both have the name 'first_column'"):
        make_attacks([{"name": "own_parts:First"}, {"name": "other_parts:First", "column": 1}])
    twice = defend(strategy, [{"name": "own_parts:Doubled"}, {"name": "own_parts:Doubled", "times": 3}])
    assert [defense.params["times"] for defense in twice.chain()] == [2, 3]


def test_a_built_in_method_has_its_class_too():
    assert type(make_attack("flower_vfl.attacks:NormAttack")) is ATTACKS["norm"]
    strategy = VerticalStrategy(torch.nn.Linear(4, 1), torch.tensor([0, 1]))
    assert type(defend(strategy, [{"name": "flower_vfl.strategies.gradients.iso:Iso"}])) is DEFENSES["iso"]


WRITER = """
from flower_vfl.attacks import NOTHING, NormAttack

class Writer(NormAttack):
    "Writes into its arguments."
    name = "writer"
    needs = frozenset({{"reference"}})
    def score(self, transcript, layer, side=NOTHING):
        last = transcript.last
        {write}
        return super().score(transcript, layer, side)
"""
CENTRED = "last.gradients[layer].flatten(1).sub_(1.0)"


@pytest.mark.parametrize("monitor", [True, False], ids=["monitor", "attacker"])
@pytest.mark.parametrize(
    ("kind", "write"),
    [
        *((kind, CENTRED) for kind in ("inproc", "stream", "messages")),
        ("inproc", "last.embedding.mul_(2)"),
        ("inproc", "last.gradients[layer].numpy()[:] -= 1.0"),
        ("inproc", "last.gradients[layer].data.zero_()"),
        ("inproc", "last.rows.sort()"),
        ("inproc", "side.tensor('reference').zero_()"),
    ],
    ids=["inproc", "stream", "messages", "embedding", "array", "data", "rows", "reference"],
)
def test_an_attack_that_writes_into_what_it_is_shown_ends_the_run_by_its_name(kind, write, monitor, install):
    install("own-parts", {"own_parts": WRITER.format(write=write)})
    attack = {"names": ["own_parts:Writer"], "monitor": monitor, "layers": ["cut"]}
    config = build_config({**SMALL, "attack": attack, "transport": {"kind": kind}})
    data = toy_data(rows=200, parties=1)
    with pytest.raises((ConfigError, PartyError), match=r"the attack 'writer' writes into what it is shown.*clone"):
        run(config, data=lambda _: data)


SHARING = """
import torch
from flower_vfl.attacks import NOTHING, Attack

FOUND = []

class Sharing(Attack):
    "Keeps state that all instances share."
    name = "sharing"
    seen = []
    total = 0.0
    def score(self, transcript, layer, side=NOTHING):
        g = transcript.last.gradients[layer].flatten(1)
        {keep}
        return g @ self.mean
    def fresh(self):
        return {fresh}
"""


@pytest.mark.parametrize(
    ("keep", "fresh", "words"),
    [
        ("self.seen.append(g.mean(dim=0)); self.mean = torch.stack(self.seen).mean(dim=0)", "type(self)()", "share"),
        ("type(self).total += g.mean(); self.mean = g.mean(dim=0) + self.total", "type(self)()", "share"),
        ("FOUND.append(g.mean(dim=0)); self.mean = sum(FOUND)", "super().fresh()", "share"),
        ("self.mean = torch.rand(g.shape[1])", "super().fresh()", "share state or randomness"),
        ("self.mean = g.mean(dim=0) + getattr(self, 'mean', 0)", "self", "share"),
    ],
    ids=["class list", "class number", "module", "random", "itself"],
)
def test_an_attack_whose_instances_share_state_ends_the_run_by_its_name(keep, fresh, words, install):
    install("own-parts", {"own_parts": SHARING.format(keep=keep, fresh=fresh)})
    config = build_config({**SMALL, "attack": {"names": ["own_parts:Sharing"], "layers": ["cut"]}})
    data = toy_data(rows=200, parties=1)
    with pytest.raises(ConfigError, match=f"the attack 'sharing': .*{words}"):
        run(config, data=lambda _: data)


def test_an_attack_that_keeps_state_in_itself_runs(install):
    keep = "self.mean = g.mean(dim=0) + getattr(self, 'mean', 0)"
    install("own-parts", {"own_parts": SHARING.format(keep=keep, fresh="super().fresh()")})
    config = build_config({**SMALL, "attack": {"names": ["own_parts:Sharing"], "layers": ["cut"]}})
    found = run(config, data=lambda _: toy_data(rows=200, parties=1)).summary["leakage"]
    assert "sharing" in {entry["attack"] for entry in found}


MEMORY_WRITER = """
from flower_vfl.attacks.longitudinal import norm
from flower_vfl.attacks.longitudinal.base import NO_KNOWN_ROWS

class Writer(norm.RememberedNormAttack):
    "Writes into the memory that it reads."
    name = "memory_writer"
    def score(self, memory, known=NO_KNOWN_ROWS):
        memory.{write}
        return super().score(memory, known)
"""


@pytest.mark.parametrize("out", [True, False], ids=["in files", "in memory"])
@pytest.mark.parametrize("write", ["sums[0][:] = 0", "order.sort()"])
def test_an_attack_that_writes_into_a_memory_ends_the_run_by_its_name(write, out, install, tmp_path):
    install("own-parts", {"own_parts": MEMORY_WRITER.format(write=write)})
    config = build_config({**SMALL, "attack": {"names": ["own_parts:Writer"]}})
    data = toy_data(rows=200, parties=1)
    with pytest.raises(ConfigError, match="the attack 'memory_writer' writes into what it is shown"):
        run(config, data=lambda _: data, out=tmp_path / "run" if out else None)
