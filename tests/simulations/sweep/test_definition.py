"""The file of a sweep."""

import pytest

from flower_vfl.config import sweep_names
from flower_vfl.errors import ConfigError
from flower_vfl.simulations.sweep.definition import load_definition


@pytest.fixture
def read(tmp_path):
    def reading(text):
        path = tmp_path / "sweep.toml"
        path.write_text(text, encoding="utf8")
        return load_definition(str(path))

    return reading


def test_nested_dotted_and_kebab_case_keys_are_the_same_keys(read):
    definition = read(
        """
        base = "census"
        [set]
        training = { epochs = 1 }
        "model-cut" = 4
        data.options.adults = true
        [grid]
        training.batch_size = [128, 256]
        """
    )
    assert definition.fixed == {"training.epochs": 1, "model.cut": 4, "data.options.adults": True}
    assert definition.grid == {"training.batch_size": [128, 256]}


def test_a_base_that_is_a_path_begins_at_the_sweeps_file(read, tmp_path):
    assert read('base = ["census", "mine.toml"]').bases == ("census", str(tmp_path / "mine.toml"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[set]\nseed = 1\n[grid]\nseed = [1, 2]", r"seed conflict: \[set\] and \[grid\]"),
        ("[random]\nseed = [1, 2]\n[grid]\nseed = [1, 2]", r"\[grid\] and \[random\]"),
        ("[grid]\nseed = [1, 2]\n[[cases]]\nseed = 3", r"\[grid\] and \[\[cases\]\]"),
        ('[grid]\ntraining.epochs = [1, 2]\n"training-epochs" = [3]', r"gives training.epochs twice"),
        ('[grid]\n"data.options.a" = [1, 2]\n"data.options" = [{}, {a = 1}]', "conflict"),
        ("[grid]\nsed = [1, 2]", "did you mean 'seed'"),
        ("[grid]\nseed = 1", "needs a list of values"),
        ("[grid]\nseed = []", "needs a list of values"),
        ("grids = 1", "did you mean 'grid'"),
        ("seed = 1", r"go into \[set\]"),
        ("[sweep]\nretry = 2", "did you mean 'retries'"),
        ("[sweep]\nretries = -1", "at least 0"),
        ("[sweep]\nsamples = 5\n[grid]\nseed = [1, 2]", "there are none"),
        ("base = 3", "base must be a preset"),
        ('base = ["census", "census"]', "twice"),
        ("[[grid]]\nseed = 1", "must be a table"),
        ("cases = 1", "must be tables"),
        ("= 1", "no valid TOML"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_words(read, text, words):
    with pytest.raises(ConfigError, match=words):
        read(text)


def test_a_missing_preset_and_a_missing_file_have_messages_of_their_own(tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'census-gradients-sweep'"):
        load_definition("census-gradient-sweep")
    with pytest.raises(ConfigError, match="no sweep's file"):
        load_definition(str(tmp_path / "none.toml"))


@pytest.mark.parametrize("name", sweep_names())
def test_every_preset_of_a_sweep_is_a_sweep(name):
    assert load_definition(name).grid
