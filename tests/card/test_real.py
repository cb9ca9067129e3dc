"""Checks on a real GPU that the stand-in cannot make."""

import warnings

import pytest
import torch

from flower_vfl.apps.local import run
from tests.card import needs_card
from tests.card.test_runs import ON_GRADIENTS, RUNS, config_of
from tests.toys import mixed_data

DRAWN = ("iso", "max_norm", "marvell", "label")
"""Defenses whose noise a GPU draws from another generator."""


@needs_card
@pytest.mark.parametrize("name", RUNS)
def test_a_run_gives_nearly_the_results_of_main_memory(name):
    make, *rest = RUNS[name]
    config, data = config_of(*rest), make()
    on_gpu = run(config.model_copy(update={"device": "cuda"}), data=lambda _: data).summary
    in_memory = run(config, data=lambda _: data).summary
    assert [(e["attack"], e["layer"], e["party"]) for e in on_gpu["leakage"]] == [
        (e["attack"], e["layer"], e["party"]) for e in in_memory["leakage"]
    ]
    if not any(word in rest[1] for word in DRAWN):
        for key, value in in_memory["utility"]["last"].items():
            assert on_gpu["utility"]["last"][key] == pytest.approx(value, abs=0.05, nan_ok=True), key


@needs_card
@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
def test_less_precise_products_train_as_well(precision):
    config, data = config_of({"training": {"epochs": 4}}, "", ["norm"]), mixed_data()
    single, reduced = (
        run(config.model_copy(update={"device": "cuda", "precision": one}), data=lambda _: data).summary
        for one in ("float32", precision)
    )
    assert reduced["weights"] != single["weights"]
    assert reduced["utility"]["last"]["test_loss"] == pytest.approx(single["utility"]["last"]["test_loss"], abs=0.02)


@needs_card
@pytest.mark.parametrize(("defenses", "most"), [("", 8), ("marvell(s=1.0)", 9)])
def test_cuda_itself_counts_no_more_waits_than_the_stand_in(defenses, most):
    """Waits of a step: the difference of two lengths; CUDA warns at each operation that makes the processor wait."""
    data, counts = mixed_data(400, 40), []
    for epochs in (1, 2):
        training = {"epochs": epochs, "batch_size": 20, "validation": 0.0}
        config = config_of({"training": training}, defenses, ON_GRADIENTS).model_copy(update={"device": "cuda"})
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                run(config, data=lambda _: data)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        counts.append(sum("synchronizing" in str(warning.message) for warning in caught))
    assert (counts[1] - counts[0]) / 20 <= most
