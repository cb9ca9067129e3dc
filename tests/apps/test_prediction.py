"""A finished run scores rows: as its own evaluation did, and only where everything fits."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from flower_vfl.apps import predict, prediction_server, run
from flower_vfl.apps.model import load_card
from flower_vfl.config import build_config
from flower_vfl.data.sources.catalog import load, prepare
from flower_vfl.data.store.dataset import Labels
from flower_vfl.errors import ConfigError, DataError, InputError, OutputExistsError, PartyError
from flower_vfl.metrics import leak_auc, macro_auc
from flower_vfl.strategies import Observer
from tests.cases import parametrize
from tests.faults.common import Interrupt
from tests.toys import mixed_data, toy_config, toy_data


def read(path):
    """Return the columns of a file of scores; IDs as texts."""
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pydict()
    return pa_csv.read_csv(path, convert_options=pa_csv.ConvertOptions(column_types={"id": "string"})).to_pydict()


def expected_auc(found, labels):
    """Return the key of the AUC in `result.json`, and its value from a file of scores."""
    if "score" in found:
        return "test_auc", leak_auc(np.array(found["score"]), labels)
    columns = [found[name] for name in found if name.startswith("score_")]
    return "test_macro_auc", macro_auc(np.array(columns).T, labels)


VARIANTS = {
    "one party": (toy_data(parties=1), {}),
    "three parties and the label party's own columns": (toy_data(parties=3, label_features=True), {}),
    "sum": (toy_data(parties=2), {"model": {"fusion": "sum"}}),
    "mean": (toy_data(parties=2), {"model": {"fusion": "mean"}}),
    "images": (toy_data(rows=200, parties=2, shape=(2, 6, 6)), {}),
    "categories and dropout": (mixed_data(), {"model": {"dropout": 0.3, "bottom": [16, 16]}}),
    "wide and deep": (mixed_data(), {"model": {"network": "wide-deep"}}),
    "ensemble": (mixed_data(), {"model": {"ensemble": 2, "dropout": 0.3}}),
    "ensemble of four classes, sum": (
        toy_data(classes=4),
        {"attack": {"names": []}, "model": {"ensemble": 4, "fusion": "sum"}},
    ),
    "ensemble behind local heads": (mixed_data(), {"model": {"ensemble": 2}, "defenses": "local_head(epsilon=4.0)"}),
    "four classes": (toy_data(classes=4), {"attack": {"names": []}}),
    "layer norm": (toy_data(), {"defenses": [{"name": "iso", "t": 1.0}, {"name": "potential_energy", "alpha": 1.0}]}),
    "four classes, layer norm": (
        toy_data(classes=4),
        {"attack": {"names": []}, "defenses": [{"name": "potential_energy", "alpha": 1.0}]},
    ),
    "two steps in flight": (toy_data(), {"transport": {"in_flight": 2}}),
    "flipped labels": (toy_data(), {"defenses": [{"name": "label_dp", "flip": 0.1}]}),
    "a limit and early stopping": (
        toy_data(),
        {"attack": {"names": ["remembered_norm"], "max_leak": 0.6}, "training": {"epochs": 5, "patience": 4}},
    ),
}


@parametrize(
    ("name", "ending"),
    [*((name, "csv") for name in VARIANTS), ("one party", "parquet"), ("four classes", "parquet")],
    quick=1,
)
def test_scores_of_the_test_rows_repeat_the_runs_own_evaluation(name, ending, tmp_path):
    data, sections = VARIANTS[name]
    result = run(toy_config(**sections), data=lambda _: data, out=tmp_path / "run")
    predict(tmp_path / "run", tmp_path / f"scores.{ending}", data=lambda _: data)
    found = read(tmp_path / f"scores.{ending}")
    key, auc = expected_auc(found, data.target.test)
    assert auc == result.summary["utility"]["last"][key]
    assert found["id"] == [str(row) for row in range(len(data.target.test))]
    if "predicted" in found:
        correct = np.mean([int(value) for value in found["predicted"]] == data.target.test)
        assert correct == pytest.approx(result.summary["utility"]["last"]["test_accuracy"], abs=1e-12)


@parametrize(("kind", "wire"), [("stream", "exact"), ("messages", "exact"), ("stream", "float16")], quick=1)
def test_every_transport_gives_the_scores_that_evaluation_had(kind, wire, tmp_path):
    data = toy_data(rows=200)
    config = toy_config(transport={"kind": kind, "wire_dtype": wire})
    result = run(config, data=lambda _: data, out=tmp_path / "run")
    predict(tmp_path / "run", tmp_path / "scores.csv", data=lambda _: data)
    assert leak_auc(np.array(read(tmp_path / "scores.csv")["score"]), data.target.test) == result.test_auc


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run on data with IDs, and its scores of the test rows."""
    folder = tmp_path_factory.mktemp("finished")
    config = build_config({"data": {"name": "breast-cancer"}, "training": {"epochs": 2, "batch_size": 64}})
    result = run(config, out=folder / "run")
    predict(folder / "run", folder / "scores.csv")
    return folder, result


@pytest.fixture
def copy(finished, tmp_path):
    """A copy of the run, which a test may damage."""
    return shutil.copytree(finished[0] / "run", tmp_path / "copy")


def test_scores_carry_the_ids_of_the_data(finished):
    folder, result = finished
    dataset = load("breast-cancer")
    found = read(folder / "scores.csv")
    assert found["id"] == dataset.ids("test")
    assert leak_auc(np.array(found["score"]), dataset.labels().test) == result.test_auc


def test_a_weighted_run_predicts_where_a_class_has_no_training_row(tmp_path):
    data = toy_data(classes=2)
    data = replace(data, target=Labels(data.target.train, data.target.test, 3))
    training = {"class_weights": "balanced", "epochs": 1}
    run(toy_config(training=training, attack={"names": []}), data=lambda _: data, out=tmp_path / "run")
    predict(tmp_path / "run", tmp_path / "scores.csv", data=lambda _: data)
    assert np.isfinite([scores for name, scores in read(tmp_path / "scores.csv").items() if "score" in name]).all()


@parametrize("classes", [2, 3], quick=1)
def test_scores_of_weighted_classes_are_probabilities_with_the_frequencies_of_training(classes, tmp_path):
    sixths = toy_data(rows=2000, test_rows=1000, classes=6)
    train, test = (np.maximum(y - 6 + classes, 0) for y in (sixths.target.train, sixths.target.test))
    data = replace(sixths, target=Labels(train, test, classes))
    training = {"class_weights": "balanced", "epochs": 8, "learning_rate": 0.02}
    run(toy_config(training=training, attack={"names": []}), data=lambda _: data, out=tmp_path / "run")
    predict(tmp_path / "run", tmp_path / "scores.csv", data=lambda _: data)
    found = read(tmp_path / "scores.csv")
    means = [np.mean(scores) for name, scores in found.items() if name.startswith("score")]
    shares = [np.mean(test == number) for number in range(classes)]
    assert max(shares) > 0.6  # uncorrected, the means would be much closer to each other
    np.testing.assert_allclose(means, shares[1:] if classes == 2 else shares, atol=0.08)


def test_given_ids_are_scored_in_their_order_training_rows_too(finished, tmp_path):
    dataset, (folder, _) = load("breast-cancer"), finished
    test = dict(zip(*read(folder / "scores.csv").values(), strict=True))
    asked = [dataset.ids("test")[5], dataset.ids("train")[3], dataset.ids("test")[0], dataset.ids("train")[0]]
    (tmp_path / "ids.txt").write_text("\n".join(asked) + "\n")
    (tmp_path / "ids.csv").write_text("note,id\n" + "\n".join(f"x,{value}" for value in asked))
    for name in ("ids.txt", "ids.csv"):
        predict(folder / "run", tmp_path / "scores.csv", ids=tmp_path / name, overwrite=True)
        found = read(tmp_path / "scores.csv")
        assert found["id"] == asked
        assert found["score"][0] == pytest.approx(test[asked[0]], abs=1e-6)
        assert found["score"][2] == pytest.approx(test[asked[2]], abs=1e-6)
        assert len(set(found["score"])) == 4


def test_scores_do_not_depend_on_which_others_are_asked_for(finished, tmp_path):
    dataset, (folder, _) = load("breast-cancer"), finished
    everybody = read(folder / "scores.csv")
    (tmp_path / "ids.txt").write_text("\n".join(reversed(dataset.ids("test"))))
    predict(folder / "run", tmp_path / "scores.csv", ids=tmp_path / "ids.txt")
    again = read(tmp_path / "scores.csv")
    assert again["score"][::-1] == pytest.approx(everybody["score"], abs=1e-6)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("9\nghost\nspectre\nspook\nwraith\n", r"4 of 5 IDs are not in the data: 'ghost', 'spectre', 'spook', \.\.\."),
        ("9\n42\n9\n", r"ids\.txt: 1 ID occurs more than once, in lines 1, 3; keep one of each$"),
        ("\n\n", "names no ID"),
        ("9\n\n42\n", "line 2 has no ID; leave"),
    ],
)
def test_ids_that_cannot_be_scored_are_named_and_nothing_is_written(finished, tmp_path, text, words):
    (tmp_path / "ids.txt").write_text(text)
    with pytest.raises(DataError, match=words):
        predict(finished[0] / "run", tmp_path / "scores.csv", ids=tmp_path / "ids.txt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ids.txt"]


def test_rows_without_ids_are_asked_for_by_their_number_in_the_test_table(tmp_path):
    data = toy_data(rows=100, test_rows=30)
    run(toy_config(), data=lambda _: data, out=tmp_path / "run")
    (tmp_path / "ids.txt").write_text("7\n3\n")
    predict(tmp_path / "run", tmp_path / "scores.csv", ids=tmp_path / "ids.txt", data=lambda _: data)
    assert read(tmp_path / "scores.csv")["id"] == ["7", "3"]
    (tmp_path / "ids.txt").write_text("30\n007\n-1\n3\n")
    words = "3 of 4 IDs are not in the data: '30', '007', '-1'; its test rows have no IDs but numbers, 0 to 29, and"
    with pytest.raises(DataError, match=words):
        predict(tmp_path / "run", tmp_path / "more.csv", ids=tmp_path / "ids.txt", data=lambda _: data)


@pytest.mark.parametrize(
    ("out", "kind", "words"),
    [
        ("scores.txt", ConfigError, r"\*\.csv or \*\.parquet"),
        ("missing/scores.csv", DataError, "there is no folder"),
        ("there.csv", OutputExistsError, "--overwrite"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_computed(finished, tmp_path, out, kind, words):
    (tmp_path / "there.csv").write_text("precious")
    with pytest.raises(kind, match=words):
        predict(finished[0] / "run", tmp_path / out)
    assert (tmp_path / "there.csv").read_text() == "precious"


def damage_result(folder, **changes):
    summary = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**summary, **changes}))


DAMAGES = {
    "no run": (lambda folder: (folder / "config.toml").unlink(), "is no run"),
    "killed": (lambda folder: (folder / "result.json").unlink(), "is not finished: it has no result.json"),
    "interrupted": (
        lambda folder: damage_result(folder, status="interrupted", error="KeyboardInterrupt"),
        "is not finished, it is 'interrupted'; if it was interrupted, go on with it: flower-vfl run .* --resume",
    ),
    "failed": (lambda folder: damage_result(folder, status="failed", error="x died"), "it is 'failed': x died"),
    "result without weights": (lambda folder: damage_result(folder, weights=None), "not finished"),
    "other weights": (lambda folder: damage_result(folder, weights={"label": "0"}), "not those that its result.json"),
    "label party's weights": (
        lambda folder: (folder / "weights" / "label.safetensors").unlink(),
        r"no weights of a finished training at .*label\.safetensors",
    ),
    "a party's weights": (
        lambda folder: (folder / "weights" / "a.safetensors").unlink(),
        r"no weights of a finished training at .*a\.safetensors",
    ),
    "configuration": (
        lambda folder: (folder / "config.toml").write_text(
            (folder / "config.toml").read_text().replace("seed = 0\nschedule", "seed = 7\nschedule")
        ),
        r"was changed after training \(seed\)",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_missing_or_does_not_fit_is_named_and_nothing_is_written(name, copy, tmp_path):
    damage, words = DAMAGES[name]
    damage(copy)
    with pytest.raises(InputError, match=words):
        predict(copy, tmp_path / "scores.csv")
    assert [path.name for path in tmp_path.iterdir() if path.name != "copy" and path.is_file()] == []


def test_a_run_that_went_on_with_settings_that_may_change_can_predict(tmp_path):
    data = toy_data()
    with pytest.raises(KeyboardInterrupt):
        run(toy_config(), data=lambda _: data, out=tmp_path / "run", observers=(Interrupt(7),))
    changed = toy_config(transport={"step_timeout": 700.0, "port": 9443}, checkpoint={"keep": 5})
    result = run(changed, data=lambda _: data, out=tmp_path / "run", resume=True)
    predict(tmp_path / "run", tmp_path / "scores.csv", data=lambda _: data)
    assert leak_auc(np.array(read(tmp_path / "scores.csv")["score"]), data.target.test) == result.test_auc


def test_weights_of_another_training_of_the_same_party_are_refused(copy, tmp_path):
    config = build_config({"data": {"name": "breast-cancer"}, "training": {"epochs": 2, "batch_size": 64}, "seed": 1})
    run(config, out=tmp_path / "other")
    shutil.copy(tmp_path / "other" / "weights" / "a.safetensors", copy / "weights" / "a.safetensors")
    with pytest.raises(DataError, match="of another training"):
        predict(copy, tmp_path / "scores.csv")


def test_a_party_whose_weights_are_not_the_reported_ones_is_refused(copy, tmp_path):
    summary = json.loads((copy / "result.json").read_text())
    damage_result(copy, weights={**summary["weights"], "a": "0" * 64})
    with pytest.raises(PartyError, match="other weights than it reported"):
        predict(copy, tmp_path / "scores.csv")


def test_other_data_than_that_of_training_is_refused(finished, tmp_path):
    other = prepare("breast-cancer", out=tmp_path / "data", options={"split_seed": 1})
    with pytest.raises(DataError, match=r"are others than the label party was trained on: .*; open the data of the"):
        predict(finished[0] / "run", tmp_path / "scores.csv", data=lambda _: other)


def test_other_encodings_than_those_of_training_are_refused(finished, tmp_path):
    other = prepare("breast-cancer", out=tmp_path / "data")
    for path in (tmp_path / "data" / "a" / "encoding.json", tmp_path / "data" / "b" / "encoding.json"):
        path.write_text(path.read_text().replace('"identity"', '"log1p"'))
    with pytest.raises(DataError, match=r"encoded otherwise than in training; new rows of a prepared .* raw files"):
        predict(finished[0] / "run", tmp_path / "scores.csv", data=lambda _: other)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text.replace("p07,7", "p07,907"), "the columns of party 'bank' are encoded otherwise than"),
        (lambda text: text + "p80,1,2,0\n", r"are others than party 'bank' was trained on: 6\d \+ 1\d, in training"),
    ],
)
def test_a_file_that_was_changed_after_training_is_named_with_what_to_do(tmp_path, change, words):
    path, shop = tmp_path / "bank.csv", tmp_path / "shop.csv"
    path.write_text("id,x,y,label\n" + "".join(f"p{row:02},{row},{row % 9},{row % 2}\n" for row in range(80)))
    shop.write_text("id,z\n" + "".join(f"p{row:02},{row % 7}.5\n" for row in range(81)))
    options = {"files": {"bank": str(path), "shop": str(shop)}, "label_party": "bank", "join": "inner"}
    run(toy_config(data={"name": "files", "options": options}, training={"batch_size": 16}), out=tmp_path / "run")
    path.write_text(change(path.read_text()))
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "bank.csv").write_text("id,x,y\nq1,3,4\n")
    (tmp_path / "new" / "shop.csv").write_text("id,z\nq1,2.5\n")
    with pytest.raises(DataError, match=words) as caught:
        predict(tmp_path / "run", tmp_path / "scores.csv", new_data=tmp_path / "new")
    message = str(caught.value)
    assert f"was changed since, one of files.bank = {path}, files.shop = {shop}." in message
    assert "`flower-vfl data prepare`" in message
    assert "FeatureSpec" not in message


def bottom(spec, config):
    return nn.Sequential(nn.Linear(spec.numeric, 12), nn.Tanh(), nn.BatchNorm1d(12), nn.Linear(12, 5))


def relu(spec, config):
    return nn.Sequential(nn.Linear(spec.numeric, 12), nn.ReLU(), nn.BatchNorm1d(12), nn.Linear(12, 5))


def top(shape, classes, config):
    return nn.Linear(shape[0], 1)


def test_models_of_the_users_own_predict_with_the_factories_that_made_them_and_no_others(tmp_path):
    data = toy_data(rows=200, label_features=True)
    own = {"data": lambda _: data, "top": top}
    result = run(toy_config(), bottom=bottom, **own, out=tmp_path / "run")
    predict(tmp_path / "run", tmp_path / "scores.csv", bottom=bottom, **own)
    assert leak_auc(np.array(read(tmp_path / "scores.csv")["score"]), data.target.test) == result.test_auc
    with pytest.raises(ConfigError, match=r"the bottom model of 'label' was made by .*:bottom, here it is .*:relu"):
        predict(tmp_path / "run", tmp_path / "other.csv", bottom=relu, **own)
    with pytest.raises(ConfigError, match=r"the top model .*:default_top"):
        predict(tmp_path / "run", tmp_path / "other.csv", data=own["data"], bottom=bottom)


def test_a_feature_party_refuses_another_model_itself(tmp_path):
    data = toy_data(rows=100)
    run(toy_config(), data=lambda _: data, bottom=bottom, out=tmp_path / "run")
    with pytest.raises(ConfigError, match=r"the bottom model of '[ab]' was made by"):
        predict(tmp_path / "run", tmp_path / "scores.csv", data=lambda _: data, bottom=relu)


def test_predicting_changes_no_weight_and_no_file_of_the_run(copy, tmp_path):
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    predict(copy, tmp_path / "scores.csv")
    predict(copy, tmp_path / "again.csv")
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before
    assert (tmp_path / "scores.csv").read_bytes() == (tmp_path / "again.csv").read_bytes()


def test_the_label_party_reads_no_label_while_it_predicts(finished, tmp_path, monkeypatch):
    from flower_vfl.data.store.dataset import Dataset

    monkeypatch.setattr(Dataset, "labels", lambda self: pytest.fail("labels were read"))
    predict(finished[0] / "run", tmp_path / "scores.csv")
    assert (tmp_path / "scores.csv").read_bytes() == (finished[0] / "scores.csv").read_bytes()


def test_progress_is_reported_to_the_end_and_memory_holds_a_batch(tmp_path, monkeypatch):
    data = toy_data(rows=100, test_rows=250)
    run(toy_config(), data=lambda _: data, out=tmp_path / "run")
    reported, sizes = [], []

    class Progress(Observer):
        def on_scores(self, done, total):
            reported.append((done, total))

    genuine = prediction_server.run_prediction

    def counted(*arguments):
        for rows, logits in genuine(*arguments):
            sizes.append(len(logits))
            yield rows, logits

    monkeypatch.setattr(prediction_server, "run_prediction", counted)
    predict(tmp_path / "run", tmp_path / "scores.csv", data=lambda _: data, observers=(Progress(),))
    assert reported == [(100, 250), (200, 250), (250, 250)]
    assert sizes == [100, 100, 50]


def test_a_party_that_dies_half_way_leaves_no_file(finished, tmp_path, monkeypatch):
    from flower_vfl.parties.predictor import Predictor

    genuine = Predictor.handle

    def dying(self, frame):
        if frame.step == 0:
            raise RuntimeError("no memory left")
        return genuine(self, frame)

    monkeypatch.setattr(Predictor, "handle", dying)
    with pytest.raises(PartyError, match="no memory left"):
        predict(finished[0] / "run", tmp_path / "scores.csv")
    assert not any(tmp_path.iterdir())


def test_a_run_whose_files_were_moved_still_predicts(finished, tmp_path):
    shutil.move(shutil.copytree(finished[0] / "run", tmp_path / "one"), tmp_path / "two")
    predict(tmp_path / "two", tmp_path / "scores.csv")
    assert (tmp_path / "scores.csv").read_bytes() == (finished[0] / "scores.csv").read_bytes()


def test_the_number_of_threads_is_the_runs_and_is_put_back(finished, tmp_path):
    before = torch.get_num_threads()
    predict(finished[0] / "run", tmp_path / "scores.csv")
    assert torch.get_num_threads() == before
    assert load_card(finished[0] / "run" / "weights" / "a.safetensors").config.threads == 1
