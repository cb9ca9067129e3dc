"""`flower-vfl budget` plans a training, and begins, shows and changes a ledger."""

from datetime import UTC, datetime

import numpy as np
import pytest

from flower_vfl.accounting import RandomisedResponse, Release
from flower_vfl.accounting.ledger import PrivacyLedger, Training
from tests.cases import parametrize
from tests.commands import flower_vfl


def rows(*arguments):
    """Return the output of a plan, and the cells of its rows by mechanism and time of the draw."""
    done = flower_vfl("budget", *arguments)
    assert done.returncode == 0, done.stderr
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    table = done.stdout.split("\n\n")[1].splitlines()[1:]
    return done.stdout, {(line[:20].strip(), line[21:32].strip()): line[33:].split() for line in table}


def test_a_plan_says_how_strong_each_mechanism_must_be():
    text, found = rows("--epsilon", 2, "--epochs", 6, "--delta", 1e-6)
    assert "AUC of at most 0.8808" in text
    assert found["randomised_response", "once"] == ["flip", "0.119203", "2"]
    assert found["laplace", "once"] == ["scale", "0.5", "2"]
    ratio = float(found["gaussian", "each epoch"][1]) / float(found["gaussian", "once"][1])
    assert ratio == pytest.approx(np.sqrt(6.0), rel=1e-4)


def test_without_a_delta_epsilons_of_epochs_add_up_and_a_gaussian_has_none():
    _, found = rows("--epsilon", 3, "--epochs", 6, "--classes", 4)
    assert found["laplace", "each epoch"] == ["scale", "4", "0.5"]  # one-hot: two coordinates change
    assert found["randomised_response", "each epoch"][2] == "0.5"
    assert found["gaussian", "once"][0] == "none"


def test_a_plan_says_how_many_labels_leave_a_signal_and_where_none_is_left():
    text, found = rows("--epsilon", 5e-5, "--epochs", 6)
    assert "Fewer than 554,517,745 labels are refused" in text  # ln 2 / (epsilon tanh(epsilon / 2))
    assert found["randomised_response", "once"] == ["flip", "0.499988", "5e-05"]
    assert found["laplace", "each epoch"] == ["none", "no", "signal", "would", "be", "left"]
    assert "labels are refused" not in rows("--epsilon", 2)[0]


def test_a_draw_that_delta_alone_covers_is_marked():
    assert rows("--epsilon", 0.01, "--epochs", 6, "--delta", 0.01)[1]["gaussian", "each epoch"][2:] == [
        "0,",
        "within",
        "delta",
    ]


def test_a_ledger_is_begun_shown_planned_with_and_given_another_limit(tmp_path):
    path = tmp_path / "ledger.json"
    assert "0 trainings spent epsilon 0 of 1.5" in flower_vfl("budget", path, "--limit", 1.5).stdout
    release = Release(RandomisedResponse(1.0), kept=True)
    training = Training("rows", np.arange(8) % 2, 1, "", "local_head", release)
    PrivacyLedger(path).charge(training, datetime(2026, 11, 25, tzinfo=UTC))
    shown = flower_vfl("budget", path).stdout
    assert "1 training spent epsilon 1 of 1.5 at delta 0; 0.5 is left" in shown
    assert "2026-11-25T00:00:00 local_head    randomised_response, flip 0.268941 once  1" in shown
    assert "exceeds the limit of 1.5" in rows(path, "--epsilon", 1)[0]
    assert "keeps within the limit of 1.5" in rows(path, "--epsilon", 0.5, "--mechanism", "laplace")[0]
    assert "it keeps within" in rows(path, "--epsilon", 0.5)[0]
    flower_vfl("budget", path, "--limit", 1.14)
    assert "it keeps within the limit of 1.14" in rows(path, "--epsilon", 0.14)[0]  # as floats, the sum is above
    assert "of 4 at delta 1e-06" in flower_vfl("budget", path, "--limit", 4, "--delta", 1e-6).stdout
    assert "of 5 at delta 1e-06" in flower_vfl("budget", path, "--limit", 5).stdout


@parametrize(
    ("arguments", "words"),
    [
        ([], "give --epsilon to plan a training, or a LEDGER"),
        (["--limit", 2], "--limit is of a LEDGER"),
        (["--epsilon", 0], "epsilon is 0: nothing would be left of the labels"),
        (["--epsilon", 1e-9, "--epochs", 6], "epsilon 1e-09 at delta 0 cannot be met"),
        (["--epsilon", 1e-9, "--epochs", 6, "--delta", 1e-6], "epsilon 1e-09 at delta 1e-06 cannot be met"),
        (["--epsilon", 1e4], "epsilon 10000 cannot be proven: above 20 the probability"),
        (["--epsilon", -1], "epsilon must be a finite number of at least 0, given -1"),
        (["--epsilon", 1, "--delta", 2], "delta must be a number from 0 to below 1"),
        (["--epsilon", 1, "--epochs", 0], "0 is not in the range x>=1"),
        (["--epsilon", 1, "--mechanism", "gaussian"], "gaussian cannot reach epsilon 1 at delta 0"),
        (["--epsilon", 1, "--mechanism", "guess"], "'guess' is not one of"),
        (["missing.json"], "there is no privacy ledger here"),
        (["missing.json", "--limit", "nan"], "epsilon must be a finite number"),
    ],
    ids=str,
    quick=3,
)
def test_bad_input_ends_with_one_message_and_leaves_nothing(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = flower_vfl("budget", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in " ".join(done.stderr.split())
    assert not list(tmp_path.iterdir())
