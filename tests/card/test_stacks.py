"""Runs that are trained together on a GPU give the results of each alone, with little more work for the GPU."""

import pytest

from flower_vfl.apps.local import run
from flower_vfl.simulations.stacked.running import train_stack
from tests.card.device import card, counting
from tests.simulations.stacked.test_running import DEFENSES, configs
from tests.toys import mixed_data


def on_device(defenses, seeds, **more):
    return [config.model_copy(update={"device": "card"}) for config in configs(more, defenses, seeds)]


@pytest.mark.slow
def test_a_stack_on_the_stand_in_gives_the_results_of_its_runs(tmp_path):
    data, runs = mixed_data(256, 64), on_device(DEFENSES, [0, 1, 0, 0, 1, 0])
    folders = [tmp_path / str(number) for number in range(len(runs))]
    with card():
        assert train_stack(runs, folders, data=lambda _: data) == []
        for config, folder in zip(runs, folders, strict=True):
            together = run(config, out=folder, resume=True, data=lambda _: data).summary["utility"]["last"]
            alone = run(config, data=lambda _: data).summary["utility"]["last"]
            assert together == pytest.approx(alone, abs=1e-4)


ROWS, BATCH = 120, 20


def launches_a_step(work):
    """Return the number of operations of a step, start and end of training left out."""
    counts = []
    for epochs in (1, 2):
        with card(), counting() as waits:
            work({"training": {"epochs": epochs, "batch_size": BATCH, "validation": 0.0}})
        counts.append(waits.launches)
    return (counts[1] - counts[0]) / (ROWS // BATCH)


@pytest.mark.slow
@pytest.mark.parametrize(
    "defense", [*(pytest.param(name, marks=pytest.mark.release) for name in ("iso(t={})", "max_norm")), "marvell(s={})"]
)
def test_a_hundred_runs_are_at_most_three_times_the_work_of_one(defense, tmp_path):
    """Counted for 2 and 6 runs: each further run adds equally many operations, as noise is drawn run by run."""
    data = mixed_data(ROWS, 40)

    def stack(count):
        def train(more):
            runs = on_device([defense.format(1.0 + number) for number in range(count)], list(range(count)), **more)
            folder = tmp_path / f"{count}-{more['training']['epochs']}"
            train_stack(runs, [folder / str(number) for number in range(count)], data=lambda _: data)

        return launches_a_step(train)

    two, six = stack(2), stack(6)
    one = launches_a_step(lambda more: run(on_device([defense.format(1.0)], [0], **more)[0], data=lambda _: data))
    each = (six - two) / 4
    assert two - 2 * each + 100 * each <= 3 * one
