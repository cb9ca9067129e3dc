"""Runs that are trained together on a card end as each ends by itself there."""

import pytest

from flower_vfl.apps.local import run
from flower_vfl.simulations.stacked.running import train_stack
from tests.card.device import card, counting
from tests.simulations.stacked.test_running import DEFENSES, configs
from tests.toys import mixed_data


@pytest.fixture
def device():
    with card() as name:
        yield name


def test_a_stack_gives_what_its_runs_give_there(device, tmp_path):
    data = mixed_data()
    runs = [config.model_copy(update={"device": device}) for config in configs({}, DEFENSES, [0, 1, 0, 0, 1, 0])]
    folders = [tmp_path / str(number) for number in range(len(runs))]
    with counting() as together:
        assert train_stack(runs, folders, data=lambda _: data) == []
    with counting() as apart:
        alone = [run(config, data=lambda _: data).summary for config in runs]
    for config, folder, summary in zip(runs, folders, alone, strict=True):
        finished = run(config, out=folder, resume=True, data=lambda _: data).summary
        for key, value in summary["utility"]["last"].items():
            assert finished["utility"]["last"][key] == pytest.approx(value, abs=1e-4), key
    assert together.launches < apart.launches / 2
    assert together.total() < apart.total() / 2
