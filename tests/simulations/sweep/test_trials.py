"""Trials of a sweep, from its file."""

from fnmatch import fnmatch

import pytest

from flower_vfl.config import load_config, sweep_names
from flower_vfl.errors import ConfigError
from flower_vfl.simulations.sweep.definition import load_definition
from flower_vfl.simulations.sweep.trials import trials_of


@pytest.fixture
def trials(tmp_path):
    def reading(text, **overrides):
        path = tmp_path / "sweep.toml"
        path.write_text(text, encoding="utf8")
        return trials_of(load_definition(str(path)), overrides)

    return reading


def test_a_grid_has_a_trial_for_each_combination_each_a_whole_configuration(trials):
    found = trials('base = "census"\n[set]\ntraining.epochs = 1\n[grid]\nseed = [3, 4]\nmodel.bottom = [[8], [16, 8]]')
    assert [trial.run for trial in found] == ["seed3-8", "seed3-16-8", "seed4-8", "seed4-16-8"]
    for trial in found:
        expected = load_config("census", {"training.epochs": "1"})
        model = expected.model.model_copy(update={"bottom": trial.config.model.bottom})
        assert trial.config == expected.model_copy(update={"seed": trial.config.seed, "model": model})
    assert found[1].values == {"seed": 3, "model.bottom": "[16, 8]"}


def test_a_defense_with_a_list_of_strengths_is_a_defense_for_each(trials):
    found = trials(
        '[grid]\ndefenses = ["none", { name = "marvell", s = [1.0, 4.0] }, ["iso(t=2.0)", { name = "label_dp" }]]'
    )
    assert [trial.config.defenses for trial in found] == [
        [],
        [{"name": "marvell", "s": 1.0}],
        [{"name": "marvell", "s": 4.0}],
        [{"name": "iso", "t": 2.0}, {"name": "label_dp"}],
    ]
    assert [trial.run for trial in found] == ["none", "marvell-s1", "marvell-s4", "iso-t2-label-dp"]


def test_no_gradients_stands_in_the_place_of_a_defense_by_itself(trials):
    found = trials('[grid]\ndefenses = ["none", { name = "no_gradients", pretrain = [0, 3] }]')
    rows = [(t.values["defenses"], t.config.training.gradients, t.config.training.pretrain) for t in found]
    assert rows == [
        ("none", True, 0),
        ("no_gradients(pretrain=0)", False, 0),
        ("no_gradients(pretrain=3)", False, 3),
    ]
    assert [trial.config.defenses for trial in found] == [[], [], []]
    for wrong in ('"no_gradients, max_norm"', '"no_gradients(epochs=3)"'):
        with pytest.raises(ConfigError, match="no_gradients stands by itself"):
            trials(f'[grid]\ndefenses = ["none", {wrong}]')


def test_several_bases_and_cases_are_combined_with_the_grid(trials):
    found = trials(
        'base = ["census", "toy-gap"]\n[grid]\nseed = [0, 1]\n[[cases]]\nmodel.cut = 4\n[[cases]]\nmodel.cut = 8'
    )
    assert len(found) == 8
    assert {trial.config.data.name for trial in found} == {"census-income", "toy-gap"}
    assert found[0].values == {"base": "census", "model.cut": 4, "seed": 0}


@pytest.mark.parametrize(
    ("names", "patterns"),
    [
        (["a/base.toml", "b/base.toml"], ["a/base", "b/base"]),
        (["a/base.toml", "a/other.toml"], ["base", "other"]),
        (["x/a/base.toml", "y/a/base.toml", "other.toml"], ["x/a/base", "y/a/base", "*/other"]),
    ],
)
@pytest.mark.parametrize("grid", ["", "[grid]\nseed = [0, 1]"])
def test_bases_of_one_file_name_are_told_apart(trials, tmp_path, names, patterns, grid):
    for cut, name in enumerate(names, 2):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"model.cut = {cut}")
    found = trials(f"base = {names}\n{grid}")
    called = list(dict.fromkeys(trial.values["base"] for trial in found))
    assert len(called) == len(names)
    assert all(map(fnmatch, called, patterns))
    assert {trial.config.model.cut for trial in found if trial.values["base"] == called[-1]} == {len(names) + 1}


def test_a_preset_and_a_file_of_its_name_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "census.toml").write_text("model.cut = 3")
    (tmp_path / "sweep.toml").write_text('base = ["census", "census.toml"]')
    found = trials_of(load_definition("sweep.toml"))
    assert [trial.values["base"] for trial in found] == ["census", "census.toml"]


RANDOM = """
[random]
training.learning_rate = { low = 1e-4, high = 1e-1, log = true }
training.batch_size = { low = 64, high = 256 }
model.fusion = ["sum", "mean"]
defenses = { name = "marvell", s = { low = 0.1, high = 25.0, log = true } }
[grid]
seed = [0, 1]
[sweep]
samples = %d
seed = %d
"""


def test_draws_stay_in_their_ranges_and_are_the_same_at_each_point_of_the_grid(trials):
    found = trials(RANDOM % (40, 7))
    by_seed = {seed: [t.config for t in found if t.config.seed == seed] for seed in (0, 1)}
    assert [c.training for c in by_seed[0]] == [c.training for c in by_seed[1]]
    assert [c.defenses for c in by_seed[0]] == [c.defenses for c in by_seed[1]]
    rates = [c.training.learning_rate for c in by_seed[0]]
    assert len(set(rates)) == 40
    assert 1e-4 <= min(rates) < 1e-3 < 1e-2 < max(rates) <= 1e-1
    assert all(64 <= c.training.batch_size <= 256 for c in by_seed[0])
    assert {c.model.fusion for c in by_seed[0]} == {"sum", "mean"}
    assert all(0.1 <= c.defenses[0]["s"] <= 25.0 for c in by_seed[0])


def test_whole_numbers_are_drawn_from_a_negative_end_on(trials):
    found = [
        t.config.checkpoint.every for t in trials("[random]\ncheckpoint.every = {low=-1,high=1}\n[sweep]\nsamples=60")
    ]
    assert set(found) == {-1, 0, 1}


def test_more_samples_leave_the_earlier_ones_as_they_were_and_another_seed_draws_others(trials):
    few, many, other = (trials(RANDOM % given) for given in ((5, 7), (9, 7), (5, 8)))
    assert {trial.digest for trial in few} < {trial.digest for trial in many}
    assert not {trial.digest for trial in few} & {trial.digest for trial in other}


def test_draws_that_come_twice_are_one_trial(trials):
    assert len(trials("[random]\nmodel.cut = [1, 2]\n[sweep]\nsamples = 50")) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('base = "census"', "nothing varies"),
        ("[grid]\nseed = [1]", "nothing varies"),
        ("[grid]\nseed = [1, 1]", "one value twice"),
        ('[grid]\ndefenses = ["none", ""]', r"one value twice: \[none, none\]"),
        ('[grid]\nsinks = [[], ["tensorboard"]]', "two trials are the same"),
        ("[grid]\ntraining.batch_size = [0, 8, -1]", "2 trials cannot run"),
        ("[grid]\ndefenses = [3, 4]", "is no defense"),
        ("[grid]\nseed = [0, 1]\n[[cases]]\ndefenses = { name = 'iso', t = [1.0, 2.0] }", "a case is one setting"),
        ("[random]\nseed = { low = 3, high = 1 }", "low < high"),
        ("[random]\ntraining.learning_rate = { low = 0.0, high = 1.0, log = true }", "low > 0"),
        ("[random]\nseed = { low = 3 }", "needs a list of values, or"),
        ("[random]\nseed = 3", "needs a list of values, or"),
        (f"[grid]\nseed = {list(range(200))}\nmodel.cut = {list(range(200))}", "40,000 trials"),
    ],
)
def test_what_cannot_be_a_sweep_is_said_in_words(trials, text, words):
    with pytest.raises(ConfigError, match=words):
        trials(text)


def test_what_varies_cannot_be_overridden_but_the_rest_can(trials):
    text = "[grid]\nseed = [0, 1]"
    assert all(t.config.training.epochs == 2 for t in trials(text, **{"training.epochs": "2"}))
    with pytest.raises(ConfigError, match="--set gives seed"):
        trials(text, seed="3")


def test_names_of_folders_are_safe_and_differ(trials):
    found = trials('[grid]\n"data.path" = ["../x/y", "..-x-y", "/"]')
    names = [trial.run for trial in found]
    assert len(set(names)) == 3
    assert not any("/" in name or name.startswith(".") for name in names)


@pytest.mark.parametrize("name", sweep_names())
def test_every_preset_gives_its_trials(name):
    assert len(trials_of(load_definition(name))) > 4
