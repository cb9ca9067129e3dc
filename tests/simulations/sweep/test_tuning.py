"""What a worker says of a stack."""

import pytest

from flower_vfl.apps.keeping import is_begun
from flower_vfl.config import Config
from flower_vfl.simulations.stacked import running
from flower_vfl.simulations.sweep import tuning
from tests.toys import toy_config, toy_data


@pytest.fixture
def said(monkeypatch):
    found = []
    monkeypatch.setattr(tuning.tune, "report", found.append)
    return found


def plans(folder, **sections):
    config: Config = toy_config(**sections)
    configs = [config.model_copy(update={"seed": seed}) for seed in (0, 1)]
    return {"two": [(config.model_dump(), str(folder / str(config.seed)), str(folder)) for config in configs]}


def use(data, monkeypatch):
    def train(configs, folders, **more):
        return running.train_stack(configs, folders, data=lambda _: data, **more)

    monkeypatch.setattr(tuning, "train_stack", train)


def test_a_stack_tells_its_steps_and_its_end(tmp_path, monkeypatch, said):
    monkeypatch.chdir(tmp_path)
    use(toy_data(), monkeypatch)
    tuning._train_stack({"run": "two"}, plans=plans(tmp_path))
    assert said[0]["steps"] == said[-2]["step"] > 0
    assert said[-1] == {"finished": True}
    assert all(is_begun(tmp_path / seed) for seed in "01")


def test_a_stack_that_cannot_be_trained_says_why_and_begins_nothing(tmp_path, monkeypatch, said):
    monkeypatch.chdir(tmp_path)
    use(toy_data(classes=3), monkeypatch)
    tuning._train_stack({"run": "two"}, plans=plans(tmp_path, attack={"names": []}))
    assert "two classes" in said[-1]["failed"]
    assert not any(is_begun(tmp_path / seed) for seed in "01")


def test_runs_that_diverge_are_named(tmp_path, monkeypatch, said):
    monkeypatch.chdir(tmp_path)
    use(toy_data(), monkeypatch)
    tuning._train_stack({"run": "two"}, plans=plans(tmp_path, training={"optimizer": "sgd", "learning_rate": 1e30}))
    assert said[-1]["failed"] == "2 of them diverged: 0, 1"
