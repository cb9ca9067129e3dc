"""Presets: one for each set-up of the papers, and for each a small one that runs in minutes and describes itself."""

from importlib.resources import files

import pytest

from flower_vfl.config import load_config, preset_names, sweep_names
from flower_vfl.data.sources.catalog import RECIPES
from flower_vfl.data.sources.recipe import build_options
from flower_vfl.simulations.sweep.definition import load_definition
from flower_vfl.simulations.sweep.trials import trials_of

PAPERS = {
    "criteo": {"network": "wide-deep", "batch": 1024, "epochs": 5, "rate": 1e-4, "cut": 128, "patience": 0},
    "avazu": {"network": "wide-deep", "batch": 32768, "epochs": 5, "rate": 1e-4, "cut": 128, "patience": 0},
    "avazu-days": {"network": "wide-deep", "batch": 1024, "epochs": 1, "rate": 1e-4, "cut": 128, "patience": 0},
    "isic": {"network": "isic", "batch": 128, "epochs": 1000, "rate": 1e-5, "cut": 0, "patience": 0},
    "mnist": {"network": "mnist", "batch": 128, "epochs": 100, "rate": 1e-3, "cut": 0, "patience": 20},
    "fashion": {"network": "fashion", "batch": 128, "epochs": 100, "rate": 1e-3, "cut": 0, "patience": 20},
    "cifar10": {"network": "resnet20", "batch": 128, "epochs": 100, "rate": 1e-3, "cut": 0, "patience": 20},
    "dbpedia": {"network": "textcnn", "batch": 256, "epochs": 100, "rate": 1e-3, "cut": 0, "patience": 20},
}
STAND_INS = {"criteo": "census-income", "avazu": "flights", "avazu-days": "flights", "isic": "fashion-mnist"}


def words_of(preset):
    text = (files("flower_vfl") / "simulations" / "presets" / f"{preset}.toml").read_text()
    return " ".join(line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#"))


@pytest.mark.parametrize("preset", preset_names())
def test_a_preset_can_be_read_names_data_that_there_is_and_says_what_it_is(preset):
    config = load_config(preset)
    build_options(RECIPES[config.data.name], config.data.options)
    assert len(words_of(preset)) > 40


@pytest.mark.parametrize("preset", PAPERS)
def test_each_set_up_of_the_papers_has_its_preset_with_the_papers_numbers(preset):
    config, paper = load_config(preset).fitted(1_000), PAPERS[preset]
    found = {"network": config.model.network, "batch": config.training.batch_size, "epochs": config.training.epochs}
    found |= {"rate": config.training.learning_rate, "cut": config.model.cut, "patience": config.training.patience}
    assert found == paper
    assert config.training.optimizer == "adam"


@pytest.mark.parametrize("preset", PAPERS)
def test_what_the_papers_add_to_the_loss_is_a_decay_of_twice_as_much(preset):
    training = load_config(preset).training
    assert training.embedding_decay == (0.02 if preset in ("criteo", "avazu", "avazu-days") else 0.0)
    assert training.weight_decay == (0.004 if preset == "isic" else 0.0)


@pytest.mark.parametrize("preset", ["mnist", "fashion", "cifar10", "dbpedia"])
def test_sweeps_of_defended_embeddings_train_as_the_paper_does_with_a_defense(preset):
    trials = trials_of(load_definition(f"{preset}-embeddings-sweep"))
    assert {(trial.config.training.epochs, trial.config.training.patience) for trial in trials} == {(100, 0)}
    strengths = {(entry["name"], entry.get("normalise")) for trial in trials for entry in trial.config.defenses}
    assert strengths == {("potential_energy", None), ("distance_correlation", True), ("label_dp", None)}


@pytest.mark.parametrize("sweep", sweep_names())
def test_every_sweep_has_a_validation_part_to_rank_by(sweep):
    assert all(trial.config.training.validation > 0 for trial in trials_of(load_definition(sweep)))


@pytest.mark.parametrize("preset", PAPERS)
def test_each_has_a_small_preset_that_names_the_data_that_it_stands_in_for(preset):
    paper, small = load_config(preset), load_config(f"{preset}-small")
    if preset in STAND_INS:
        assert small.data.name == STAND_INS[preset]
        assert "a stand-in for the preset " + preset in words_of(f"{preset}-small")
        assert ", not " in words_of(f"{preset}-small")
        assert f"{preset}-small" in words_of(preset)
    else:
        assert small.data.name in (paper.data.name, f"{paper.data.name}-5000")
    assert small.training.order == paper.training.order
    assert small.training.weight_decay == paper.training.weight_decay
    assert small.training.embedding_decay == paper.training.embedding_decay
    if preset != "isic":  # six poolings do not fit into 28 x 28
        assert small.model == paper.model
