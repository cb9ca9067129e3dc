"""The search of `tune`: its settings, the choice by validation, and the files that it writes."""

import json
import re
import time

import pytest

from flower_vfl.cli import main
from flower_vfl.config import build_config, load_config
from flower_vfl.data.sources.catalog import load
from flower_vfl.errors import ConfigError, TrainingError
from flower_vfl.reports.ranking import validation
from flower_vfl.simulations.sweep.search import print_tuned, run_tune, search_space
from flower_vfl.simulations.sweep.trials import trials_of

FILE = """
[data]
name = "synthetic"
options = { rows = 400, test_rows = 100 }
[training]
epochs = 2
batch_size = 64
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(FILE)
    return path


def test_the_given_settings_are_tried_first_and_draws_are_the_same_each_time(file):
    config = load_config(str(file))
    data = load("synthetic", options={"rows": 400, "test_rows": 100})
    found = search_space(config, data, 6)
    assert found == search_space(config, data, 9)[:6]
    assert found[0]["model.bottom"] == config.model.bottom
    assert found[0]["training.learning_rate"] == config.model_dump()["training"]["learning_rate"]
    assert len({str(one) for one in found}) == 6


@pytest.mark.parametrize(("rows", "numbers"), [(2_999, "bins"), (3_000, "none")])
def test_of_tables_ensembles_are_tried_and_two_with_the_given_settings_first(rows, numbers):
    config = build_config({"data": {"name": "synthetic"}})
    data = load("synthetic", options={"rows": rows, "test_rows": 50})
    given, second, third, *others = search_space(config, data, 9)
    assert second == {**given, "model.ensemble": 4}
    assert third == {**second, "model.numeric_embedding": numbers}
    assert {one["model.ensemble"] for one in others} == {1, 4}
    assert all(one["model.cut"] % one["model.ensemble"] == 0 for one in (given, second, third, *others))
    assert search_space(config, data, 2) == [given, second]
    odd = build_config({"data": {"name": "synthetic"}, "model": {"cut": 10}})  # which is no multiple of 4
    assert not any("model.ensemble" in one for one in search_space(odd, data, 9))


def test_images_have_no_bins_and_no_hidden_layers_of_tables_to_choose():
    found = search_space(load_config("toy-gap"), load("digits"), 2)[1]
    assert not {"model.bottom", "model.ensemble"} & set(found)


def test_without_validation_rows_nothing_is_searched(file, tmp_path):
    with pytest.raises(ConfigError, match=r"training\.validation is 0: set it to 0\.1"):
        run_tune(str(file), tmp_path / "out", {"training.validation": "0"}, minutes=1, trials=2)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("losses", "chosen"), [((0.30, 0.20, 0.25), 1), ((0.20, 0.20, 0.25), 0)], ids=["a smaller loss", "the given ones"]
)
def test_of_settings_that_validate_equally_the_loss_decides_and_then_the_given_ones(
    file, tmp_path, monkeypatch, losses, chosen
):
    runs = []

    def fake_sweep(definition, out, **options):
        if out.name == "again-1":
            return []  # the time was over
        runs.extend(trial.run for trial in trials_of(definition))
        last = [{"validation_auc": 1.0, "validation_loss": loss} for loss in losses]
        ended = [
            {"run": run, "status": "finished", "utility": {"last": use}} for run, use in zip(runs, last, strict=True)
        ]
        halved = {"run": runs[2], "status": "interrupted", "utility": {"last": {**last[2], "validation_loss": 0.0}}}
        return [*ended[:2], halved]

    monkeypatch.setattr("flower_vfl.simulations.sweep.search.run_sweep", fake_sweep)
    (tmp_path / "out").mkdir()
    tuned = run_tune(str(file), tmp_path / "out", {}, minutes=1, trials=3)
    assert tuned.run == runs[chosen]
    assert bool(tuned.values) == (chosen != 0)
    assert (tuned.draws, tuned.means) == (1, {})


@pytest.mark.parametrize(
    ("end", "failed", "draws"),
    [(10, None, 3), (9, None, 2), (10, 8, 3), (0, "all", 1)],
    ids=["whole", "second draw cut short", "the best diverges in it", "all diverge"],
)
def test_the_best_and_the_given_settings_are_trained_again_with_other_validation_rows(
    file, tmp_path, monkeypatch, end, failed, draws
):
    """Of six trials, the given settings are the last by validation, and the third trial is the best on average."""
    first, others = [0.80, 0.95, 0.94, 0.93, 0.92, 0.85], [0.80, 0.70, 0.75, 0.90, 0.75]
    found = {}

    def fake_sweep(definition, out, **options):
        again, trials = out.name == "again-1", trials_of(definition)
        found[again] = (trials, options["budget"])
        if again and failed == "all":
            raise TrainingError("10 of 10 trials failed")
        values = others * 2 if again else first
        done = list(zip(trials, values, strict=True))[: end if again else None]
        return [
            {"run": trial.run, "status": "failed"}
            if again and place == failed
            else {"run": trial.run, "status": "finished", "utility": {"last": {"validation_auc": value}}}
            for place, (trial, value) in enumerate(done)
        ]

    monkeypatch.setattr("flower_vfl.simulations.sweep.search.run_sweep", fake_sweep)
    monkeypatch.setattr("flower_vfl.simulations.sweep.search.DRAWS", 3)
    (tmp_path / "out").mkdir()
    began = time.monotonic()
    tuned = run_tune(str(file), tmp_path / "out", {"schedule_seed": "5"}, minutes=1, trials=6)
    (searched, search), (again, rest) = found[False], found[True]
    assert (search.given, rest.given) == (searched[0].run, "")
    assert (search.ends - began, rest.ends - began) == pytest.approx((36.0, 52.0), abs=1.0)  # the report comes after it
    order = (1, 2, 3, 4, 0)
    finalists = [searched[place] for place in order]
    assert [trial.config.schedule_seed for trial in again] == [6] * 5 + [7] * 5
    assert [trial.config.model for trial in again] == [trial.config.model for trial in finalists] * 2
    assert tuned.draws == draws
    if draws == 1:
        assert (tuned.run, tuned.means) == (searched[1].run, {})
        return
    expected = {
        searched[place].run: (first[place] + (draws - 1) * others[at]) / draws
        for at, place in enumerate(order)
        if failed is None or at != failed - len(order)
    }
    assert tuned.means == pytest.approx(expected)
    assert tuned.run == max(expected, key=expected.get)
    assert tuned.given == pytest.approx(expected[searched[0].run])
    assert f"the mean of {draws} draws of validation rows" in (tmp_path / "out" / "run.toml").read_text()


@pytest.mark.parametrize(
    ("weights", "chosen", "measure"), [("none", 0, "validation_accuracy"), ("balanced", 1, "validation_macro_auc")]
)
def test_of_many_classes_trials_are_compared_by_what_chooses_their_epochs(
    tmp_path, monkeypatch, weights, chosen, measure
):
    runs = []

    def fake_sweep(definition, out, **options):
        assert options["budget"].measure == measure
        if out.name == "again-1":
            return []
        runs.extend(trial.run for trial in trials_of(definition))
        last = [
            {"validation_accuracy": 0.9 - 0.1 * place, "validation_macro_auc": 0.8 + 0.1 * place} for place in (0, 1)
        ]
        return [
            {"run": run, "status": "finished", "utility": {"last": use}} for run, use in zip(runs, last, strict=True)
        ]

    file = tmp_path / "digits.toml"
    file.write_text('[data]\nname = "digits"\n')
    monkeypatch.setattr("flower_vfl.simulations.sweep.search.run_sweep", fake_sweep)
    (tmp_path / "out").mkdir()
    tuned = run_tune(str(file), tmp_path / "out", {"training.class_weights": weights}, minutes=1, trials=2)
    assert (tuned.run, tuned.measure) == (runs[chosen], measure)


def test_trials_whose_validation_rows_are_of_one_class_are_not_called_too_slow(file, tmp_path, monkeypatch):
    last = {"validation_auc": None, "validation_loss": 0.1}
    ended = [{"run": "one", "status": "finished", "utility": {"last": last}}]
    monkeypatch.setattr("flower_vfl.simulations.sweep.search.run_sweep", lambda *_, **__: ended)
    with pytest.raises(
        TrainingError, match=r"1 trials ended, and none has a validation auc .*training\.validation = 0"
    ):
        run_tune(str(file), tmp_path / "out", {}, minutes=1, trials=3)


def test_the_table_and_the_progress_name_trials_by_what_they_change(file, tmp_path, monkeypatch, capsys):
    def fake_sweep(definition, out, **options):
        found = [{"run": trial.run, "status": "finished"} for trial in trials_of(definition)]
        words.append([options["budget"].words[one["run"]] for one in found])
        return [{**one, "utility": {"last": {"validation_auc": 0.9 - 0.1 * at}}} for at, one in enumerate(found)]

    words = []
    monkeypatch.setattr("flower_vfl.simulations.sweep.search.run_sweep", fake_sweep)
    monkeypatch.setattr("flower_vfl.simulations.sweep.search.DRAWS", 2)
    (tmp_path / "out").mkdir()
    tuned = run_tune(str(file), tmp_path / "out", {"model.top": "32"}, minutes=1, trials=3)
    print_tuned(tuned)
    changes = ["the given settings", "ensemble 4", "numeric embedding bins, ensemble 4"]
    assert words == [changes, [f"{change}, draw 2" for change in changes]]
    shown, page = capsys.readouterr().out, (tmp_path / "out" / "report.html").read_text()
    assert [line.split("│")[1].strip() for line in shown.splitlines() if "│" in line] == changes
    assert "Chosen by validation: the given settings." in page
    for run, change in zip(tuned.shown, changes, strict=True):
        assert f"<td>{change}</td>" in page
        assert f"<td>{run}</td>" in page  # its folder
        assert run not in shown


def test_without_a_trial_that_ended_the_message_has_the_time_and_what_to_do(file, tmp_path, monkeypatch):
    budgets = []

    def none_that_ends(definition, out, **options):
        budgets.append(options["budget"])
        return []

    monkeypatch.setattr("flower_vfl.simulations.sweep.search.run_sweep", none_that_ends)
    words = r"no trial ended .* --minutes 2; give more .* --resume --minutes 10, or .* --set training\.epochs=10"
    with pytest.raises(TrainingError, match=words):
        run_tune(str(file), tmp_path / "out", {}, minutes=2, trials=3)
    assert budgets[0].latest - budgets[0].ends == pytest.approx(0.4 * 120 - 8)


@pytest.mark.slow
def test_where_only_the_given_settings_ended_that_is_the_reason_and_no_praise(file, tmp_path, capsys, monkeypatch):
    def one_that_ends(definition, out, **options):
        out.mkdir()
        metrics = {"validation_auc": 0.8, "test_auc": 0.7}
        return [{"run": trials_of(definition)[0].run, "status": "finished", "utility": {"last": metrics}}]

    monkeypatch.setattr("flower_vfl.simulations.sweep.search.run_sweep", one_that_ends)
    words = "No other setting ended in the time that was given: give more with --minutes."
    tuned = run_tune(str(file), tmp_path / "out", {}, minutes=1.0, trials=8)
    print_tuned(tuned)
    chosen = (tmp_path / "out" / "run.toml").read_text()
    assert "among 1 setting that ended" in chosen
    for text in (chosen, capsys.readouterr().out, (tmp_path / "out" / "report.html").read_text()):
        assert words in " ".join(text.split())
        assert "Nothing was better" not in text


@pytest.mark.slow
@pytest.mark.timeout(600)  # two searches with workers of Ray: 75 s by themselves, 300 on a machine with other work
def test_validation_chooses_and_the_test_is_shown_of_the_chosen_one_alone(file, tmp_path, capsys, monkeypatch):
    """One of three settings diverges, and the others count."""

    def with_one_that_diverges(*given):
        *settings, last = search_space(*given)
        return [*settings, {**last, "training.learning_rate": 1e30}]

    monkeypatch.setattr("flower_vfl.simulations.sweep.search.search_space", with_one_that_diverges)
    monkeypatch.setattr("flower_vfl.simulations.sweep.search.DRAWS", 3)
    out = tmp_path / "out"
    words = ["tune", str(file), "--out", str(out), "--trials", "3", "--minutes", "10", "--set", "model.dropout=0.05"]
    with pytest.raises(SystemExit) as done:
        main(words)
    assert done.value.code == 0
    shown = capsys.readouterr()
    *results, diverged = json.loads((out / "summary.json").read_text())
    assert (diverged["status"], len(results)) == ("failed", 2)

    def members(folder, result):
        return load_config(str(folder / result["run"] / "config.toml")).model.ensemble

    again = json.loads((out / "again-1" / "summary.json").read_text())
    found = [(members(out, result), validation(result)) for result in results]
    found += [(members(out / "again-1", result), validation(result)) for result in again]
    total = {count: [value for one, value in found if one == count] for count in (1, 4)}
    assert [len(values) for values in total.values()] == [3, 3]  # both are among the best four
    best = max(results, key=lambda result: sum(total[members(out, result)]))
    assert (shown.out + shown.err).count("test auc") == 1
    assert re.search(r"finished: .* \(validation [\d.]+\)", shown.err)  # and no test
    page = (out / "report.html").read_text()
    change = "the given settings" if best is results[0] else "ensemble 4"
    assert f"Chosen by validation: {change}." in page
    assert best["run"] in page
    assert re.search(r"finished: (the given settings|ensemble 4) \(", shown.err)
    assert best["run"] not in shown.out + shown.err
    assert page.count("test auc") == 1
    assert re.search(r"reaches: test auc 0\.\d{4}", page)
    assert not (out / "again-1" / "report.html").exists()
    chosen = load_config(str(out / "run.toml"))
    expected = load_config(str(out / best["run"] / "config.toml"))
    assert chosen.fitted(400).model == expected.model
    assert chosen.model.dropout == 0.05
    assert chosen.attack.names == load_config(str(file)).attack.names
    with pytest.raises(SystemExit) as done:
        main([*words, "--resume"])
    assert done.value.code == 0
