"""Attacks on trained models on the page: answers in words, and reproducible figures."""

import json
import re

import numpy as np
import pytest

from flower_vfl.metrics import Embeddings
from flower_vfl.reports import render
from flower_vfl.reports.figures import Point, Reached, angle_figure, map_figure, protection_figure, rebuild_figure
from flower_vfl.reports.figures.canvas import CLASS_COLOURS, PAPER
from flower_vfl.reports.rebuilt import answers, ends, in_words
from flower_vfl.reports.run import load_run
from flower_vfl.reports.settings import settings_of
from flower_vfl.reports.trained import measures_of, of_run, of_settings, on_trained_models, worst_answer
from flower_vfl.tracking import write_embeddings
from tests.cases import parametrize
from tests.reports.test_figures import texts
from tests.reports.test_page import change, page

pytestmark = pytest.mark.usefixtures("_sketched")


def clouds(classes=2, rows=60, apart=3.0, view="received"):
    rng = np.random.default_rng(classes)
    y = np.arange(rows) % classes
    z = rng.normal(size=(rows, 4)) + apart * rng.normal(size=(classes, 4))[y]
    return Embeddings("a", view, np.arange(rows), y, z.astype(np.float32))


def rebuilt(k, alone_k=None, *, means=(0.7, 0.8, 0.86), alone=(0.55, 0.6, 0.7), party="a", layer="cut", **facts):
    curve = [
        {"k": n, "labels": 2 * n, "mean": mean, "interval95": [mean - 0.05, mean + 0.3], "baseline": scratch}
        for n, mean, scratch in zip((1, 4, 16), means, alone, strict=True)
    ]
    own = {
        "attack": "model_completion",
        "metric": "auc",
        "share": 0.8,
        "federation": 0.9,
        "chance": 0.5,
        "target": 0.82,
    }
    return {**own, "party": party, "layer": layer, "params": {}, "k": k, "alone_k": alone_k, "curve": curve, **facts}


def measured(label, mean, *, party="a", source="attacker", measure="auc", baseline=0.6):
    value = {"mean": mean, "baseline": baseline, "interval95": [mean - 0.02, mean + 0.02], "chance": 0.5}
    measures = {"accuracy": {**value, "chance": 0.92}, "balanced_accuracy": value, measure: value}
    entry = {"attack": label, "label": label, "phase": "inference", "metric": "accuracy", "defended": False, "steps": 3}
    return {**entry, "party": party, "layer": "cut", "source": source, "q95": mean, "mean": 0.1, "measures": measures}


@pytest.fixture
def trained_folder(run_folder):
    """Return a function that writes a run with attacks on its trained model."""

    def make(name="run", *, k=16, mean=0.86, classes=2, views=("received",), **facts):
        folder = run_folder(name, steps=30, epochs=1, parties=("a",), **facts)
        entries = [measured("model_completion", mean), measured("clustering", mean - 0.1, measure="balanced_accuracy")]
        extra = {"rebuild": [rebuilt(k, means=(0.7, 0.8, mean))]}
        change(folder, lambda result: result.update(leakage=[*result["leakage"], *entries], **extra))
        change(folder, lambda result: result["dataset"].update(classes=classes))
        write_embeddings(folder, [clouds(classes, view=view) for view in views])
        return folder

    return make


@pytest.mark.parametrize(
    ("entry", "phrases"),
    [
        (rebuilt(16), ["32 leaked labels are enough", "With 32 labels (16 of each class)", "90 % of the way", "0.860"]),
        (rebuilt(1), ["2 leaked labels are enough", "With 2 labels (1 of each class)", "50 % of the way"]),
        (rebuilt(None), ["More than 32 leaked labels would be needed", "With 32 labels", "90 % of the way"]),
        (rebuilt(16), ["without that trained model, the same labels bring it 50 %", "more than 32 would be needed"]),
        (rebuilt(4, 4), ["bring it 25 % of the way, and 8 would be needed"]),
        (rebuilt(None, federation=None), ["no better than guessing"]),
        (rebuilt(16), ["80 % of the way counts as rebuilt", "the federation’s own test AUC (0.860 against 0.900)"]),
    ],
)
def test_the_answer_stands_in_sentences(entry, phrases):
    (answer,) = answers({"rebuild": [entry]})
    text = " ".join(in_words(answer))
    for words in phrases:
        assert words in text, text


def test_the_tone_is_bad_where_the_trained_model_rebuilds_and_good_where_it_does_not_help():
    pairs = ((1, None), (4, 16), (4, 4), (None, None))
    tones = [answers({"rebuild": [rebuilt(k, alone)]})[0].tone for k, alone in pairs]
    assert tones == ["bad", "bad", "warn", "warn"]
    assert answers({"rebuild": [rebuilt(None, alone=(0.5, 0.6, 0.82))]})[0].tone == "good"


def test_the_party_that_leaks_most_comes_first_and_of_two_views_the_worse_counts():
    entries = [
        rebuilt(None, party="a"),
        rebuilt(16, party="b", params={"normalise": False}),
        rebuilt(4, party="b", params={"normalise": True}),
        rebuilt(1, party="c", layer="first"),
    ]
    assert [(answer.party, answer.k) for answer in answers({"rebuild": entries})] == [("b", 4), ("a", None)]


def test_of_several_attackers_the_one_that_needs_fewest_labels_answers_and_is_named():
    reader = {"attack": "embedding_reader", "params": {"normalise": False, "reader": "linear"}}
    entries = [rebuilt(16), rebuilt(4, **reader), rebuilt(None, attack="mine", params="?")]
    (answer,) = answers({"rebuild": entries})
    assert (answer.k, answer.attack) == (4, "embedding_reader(reader=linear)")
    assert "by embedding_reader(reader=linear)." in in_words(answer)[1]
    assert answers({"rebuild": entries[:1]})[0].attack == "model_completion"


def test_from_scratch_the_best_of_all_attackers_counts_whoever_reads_the_trained_model_best():
    entries = [
        rebuilt(4, alone=(0.5, 0.75, 0.7)),
        rebuilt(16, 16, alone=(0.55, 0.6, 0.84), attack="embedding_reader"),
        rebuilt(None, alone=(None, None, None), attack="mine"),
    ]
    for order in (entries, entries[::-1]):
        (answer,) = answers({"rebuild": order})
        assert (answer.attack, answer.k, answer.alone_k) == ("model_completion", 4, 16)
        assert [(point.k, point.value) for point in answer.alone] == [(1, 0.55), (4, 0.75), (16, 0.84)]


@pytest.mark.parametrize(
    "entry",
    [{}, {"layer": "cut"}, {**rebuilt(1), "curve": "x"}, {**rebuilt(1), "share": "all"}, {**rebuilt(1), "curve": [{}]}],
)
def test_an_entry_of_another_shape_gives_no_answer(entry):
    assert answers({"rebuild": [entry]}) == []


def test_intervals_end_between_0_and_1_and_without_one_at_the_value():
    assert ends([-0.1, 1.2], 0.5) == (0.0, 1.0)
    assert ends(None, 0.5) == ends([0.1], 0.5) == ends(["a", "b"], 0.5) == (0.5, 0.5)


@pytest.mark.usefixtures("_really_drawn")
def test_the_page_of_a_run_answers_and_shows(trained_folder):
    folder = trained_folder(views=("received", "read"))
    text = page(render([folder])).text
    for words in (
        *(
            "What the trained model reveals about labels",
            "32 leaked labels are enough to rebuild the model",
            "from scratch",
        ),
        *("Party a, as sent", "Party a, as the top model reads them", "the federation’s own model", "t-SNE"),
        *("two of one class", "one of each of two classes", "90° = π/2", "positive", "negative"),
        *("0.840 … 0.880", "Accuracy, mean over classes", "Some classes are rare", "0.920 (accuracy)"),
    ):
        assert words in text, words
    assert text.count("angle between two embeddings") == 2


def test_the_table_has_the_number_of_known_labels_of_each_class_also_where_the_name_has_not(trained_folder):
    folder = trained_folder()
    counts = iter([1600, 0])

    def set_known(result):
        for entry in result["leakage"]:
            if entry.get("phase") == "inference":
                entry["known"] = next(counts)

    assert "model_completion – a cut" in page(render([folder])).text  # an older result has no such number
    change(folder, set_known)
    text = page(render([folder])).text
    assert "model_completion 1,600 a cut" in text
    assert "clustering 0 a cut" in text


def test_where_classes_are_equally_frequent_accuracy_is_shown_once(trained_folder):
    folder = trained_folder()

    def even(result):
        for entry in result["leakage"]:
            for measure in entry.get("measures", {}).values():
                measure["chance"] = 0.5

    change(folder, even)
    text = page(render([folder])).text
    assert "Accuracy" in text
    assert "Accuracy, mean over classes" not in text
    assert "Some classes are rare" not in text


def test_a_run_without_attacks_on_its_model_or_embeddings_says_how_to_get_them(run_folder):
    text = page(render([run_folder(steps=20, epochs=1)])).text
    assert "How many leaked labels would rebuild the model was not measured" in text
    assert "No pictures of embeddings" in text


def test_an_older_result_is_shown_by_the_measure_that_it_has(trained_folder):
    folder = trained_folder()
    change(folder, lambda result: [entry.pop("measures", None) for entry in result["leakage"]])
    change(folder, lambda result: result.pop("rebuild"))
    assert "without the model" in page(render([folder])).text
    assert measures_of({"metric": "auc", "mean": 0.7}) == {"auc": {"metric": "auc", "mean": 0.7}}


def test_the_monitor_stands_in_where_no_attacker_attacked_the_model(trained_folder):
    folder = trained_folder()
    more = [measured("clustering", 0.5, source="monitor"), measured("spectral", 0.5, source="monitor")]
    change(folder, lambda result: result.update(leakage=[*result["leakage"], *more]))
    shown = [(entry["label"], entry["source"]) for entry in on_trained_models(load_run(folder))]
    assert shown == [("model_completion", "attacker"), ("clustering", "attacker"), ("spectral", "monitor")]


def test_clusters_have_their_own_guessing_level_and_what_was_not_measured_has_none(trained_folder):
    folder = trained_folder()

    def with_levels(result):
        *_, clusters = result["leakage"]
        clusters["measures"]["accuracy"]["chance"] = 0.941
        del clusters["measures"]["auc" if "auc" in clusters["measures"] else "balanced_accuracy"]

    assert "guessing 0.9" not in page(render([folder])).text
    change(folder, with_levels)
    text = page(render([folder])).text
    assert text.count("guessing 0.941") == 1
    assert "guessing –" not in text


def test_an_attack_on_the_model_that_could_not_be_run_says_why(trained_folder):
    folder = trained_folder()
    silent = {
        **dict.fromkeys(("q95", "mean", "measures")),
        "one_class_steps": 3,
        "unavailable": "needs <b>1000</b> rows",
    }
    change(folder, lambda result: result["leakage"].append(measured("spectral", 0.5) | silent))
    text = page(render([folder])).text
    assert "spectral at party a, cut layer could not be run in 3 of 3 draws: needs <b>1000</b> rows." in text
    assert "spectral, which ran and measured nothing: needs <b>1000</b> rows." in text


POTENTIAL = ({"name": "potential_energy", "params": {"alpha": 1.0}},)


@pytest.mark.slow
def test_the_comparison_puts_none_beside_each_defense(trained_folder):
    folders = [trained_folder("plain"), trained_folder("guarded", k=None, mean=0.62, defenses=POTENTIAL)]
    html = render(folders)
    text = page(html).text
    for words in (
        *("How many leaked labels rebuild the model?", "more than 32", "Rebuilding the model", "no defense"),
        *("potential_energy alpha = 1", "perfect protection", "model_completion, cut", "clustering, cut"),
        *("Embeddings, without a defense and with each", "counts as rebuilt", "test AUC (right is better)"),
        *("attack’s AUC", "attack’s accuracy,", "mean over classes"),
    ):
        assert words in text, words
    assert text.count("angle between two embeddings") == 2
    assert html.read_bytes() == render(folders, html.with_name("again.html")).read_bytes()
    assert html.stat().st_size < 1_000_000


def test_several_seeds_of_a_setting_are_one_point_at_the_mean_with_an_interval(trained_folder, monkeypatch):
    drawn = {}
    monkeypatch.setattr(
        "flower_vfl.reports.trained.protection_figure",
        lambda title, labels, families, baseline: drawn.setdefault(title, (families, baseline)) and "",
    )
    runs = [load_run(trained_folder(f"seed{s}", mean=0.8 + 0.02 * s, seed=s, utility=0.9 + 0.01 * s)) for s in (0, 1)]
    of_settings(settings_of(runs), lines=12)
    (points,), baseline = drawn["model_completion, cut"][0].values(), drawn["model_completion, cut"][1]
    assert (points[0].leak, points[0].utility, baseline) == (pytest.approx(0.81), pytest.approx(0.905), 0.6)
    assert points[0].leaks == pytest.approx((0.81 - 0.1271, 0.81 + 0.1271), abs=1e-4)  # 12.706 * 0.01
    alone = of_settings(settings_of(runs[:1]), lines=12)
    assert alone["rebuild_figure"] is not None
    assert worst_answer(runs[0]).k == 16


def test_what_colluding_parties_reach_by_the_monitor_is_no_point_beside_attackers_baselines(trained_folder):
    folder = trained_folder()
    more = measured("clustering", 0.99, source="monitor", party="a+b", baseline=None)
    change(folder, lambda result: result.update(leakage=[*result["leakage"], more]))
    figures = of_settings(settings_of([load_run(folder)]), lines=12)["protections"]
    assert all("perfect protection" in texts(figure) for figure in figures)


def test_of_more_settings_than_lines_all_are_points_against_utility(trained_folder):
    strengths = [({"name": "potential_energy", "params": {"alpha": float(alpha)}},) for alpha in (1, 2, 4)]
    folders = [trained_folder(f"run{i}", defenses=strength) for i, strength in enumerate(strengths)]
    for folder, auc in zip(folders, (0.9, 0.8, 0.7), strict=True):
        change(folder, lambda result, auc=auc: result["utility"]["last"].update(test_auc=auc))
    found = of_settings(settings_of([load_run(folder) for folder in folders]), lines=2)
    assert {"1", "2", "4"} <= set(texts(found["protections"][0]))
    assert len(found["angles"]) == 2
    assert not any("4" in text for text in texts(found["rebuild_figure"]) if "alpha" in text)


def test_more_than_two_classes_are_compared_by_the_mean_over_classes(trained_folder):
    folder = trained_folder(classes=4)
    change(folder, lambda result: result["utility"]["last"].update(test_balanced_accuracy=0.8))
    (completion, _) = of_settings(settings_of([load_run(folder)]), lines=12)["protections"]
    assert "test accuracy, mean over classes (right is better)" in texts(completion)
    assert any("attack’s accuracy," in text for text in texts(completion))
    change(folder, lambda result: result["utility"]["last"].update(test_auc=None, test_accuracy=0.8123))
    text = page(render([folder, folder], folder / "two.html")).text
    assert "Test accuracy" in text
    assert "0.8123" in text


@pytest.mark.usefixtures("_really_drawn")
def test_the_shaded_area_ends_where_the_attacker_is_without_the_trained_model():
    families = {"none": [Point("", 0.8, 0.9, (0.78, 0.82), (0.9, 0.9))]}
    with_area, without = (protection_figure("x", ("utility", "attack"), families, baseline) for baseline in (0.6, None))
    assert "perfect protection" in texts(with_area)
    assert "perfect protection" not in texts(without)
    assert "var(--muted)" in with_area


@pytest.mark.usefixtures("_really_drawn")
def test_the_labels_on_the_axis_are_those_that_leaked():
    points = [Reached(k, 0.6 + 0.02 * k, 0.6, 0.7) for k in (1, 4, 16)]
    svg = rebuild_figure("t", "AUC", {"none": points, "one": points[:1]}, points, (0.5, 0.82, 0.9))
    assert {"1", "4", "16", "none", "one", "from scratch", "leaked labels of each class"} <= set(texts(svg))
    assert not any("mathdefault" in text for text in texts(svg))
    assert rebuild_figure("t", "AUC", {}, [], (0.5, 0.82, 0.9))


@pytest.mark.parametrize("angles", [np.zeros(0), np.zeros(3), np.full(3, np.pi), np.linspace(0, np.pi, 500)])
@pytest.mark.usefixtures("_really_drawn")
def test_any_angles_are_drawn_with_the_right_angle_marked(angles):
    svg = angle_figure("t", angles, np.array([1.0]))
    assert {"0°", "45°", "90° = π/2", "135°", "180°"} <= set(texts(svg))


@pytest.mark.parametrize("classes", [2, 14, 28])
@pytest.mark.usefixtures("_really_drawn")
def test_classes_can_be_told_apart_on_a_map_by_colour_and_marker(classes):
    y = np.repeat(np.arange(classes), 3)
    places = np.random.default_rng(0).normal(size=(y.size, 2))
    svg = map_figure("t", places, y, [f"n{i}" for i in range(classes)])
    assert {f"n{i}" for i in range(classes)} <= set(texts(svg))
    pairs = re.findall(r'<use xlink:href="#(\w+)"[^>]*style="fill: (var\(--k\d\))', svg)
    assert len(set(pairs)) == classes
    assert not any(colour in svg for colour in (*CLASS_COLOURS, PAPER))
    assert svg.count("n0<") == (2 if classes > 2 else 1)  # in the legend, and in the middle of its class


@pytest.mark.parametrize("z", [np.zeros((40, 3)), np.ones((5, 3)), np.full((40, 3), np.nan)])
@pytest.mark.usefixtures("_really_drawn")
def test_embeddings_that_have_no_map_have_none(trained_folder, z):
    folder = trained_folder()
    y = np.arange(len(z)) % 2
    write_embeddings(folder, [Embeddings("a", "received", y, y, z.astype(np.float32))])
    assert of_run(load_run(folder))["maps"] == [""]


@parametrize("scale", [1e-30, 1e30], quick=1)
@pytest.mark.usefixtures("_really_drawn")
def test_maps_do_not_depend_on_the_scale_and_one_number_a_row_is_enough(trained_folder, scale):
    sample = clouds()
    maps = []
    for factor, width in ((1.0, 4), (scale, 4), (1.0, 1)):
        folder = trained_folder(f"run{factor}{width}")
        z = (sample.z[:, :width].astype(float) * factor).astype(np.float32)
        write_embeddings(folder, [Embeddings("a", "received", sample.rows, sample.labels, z)])
        maps.append(of_run(load_run(folder))["maps"])
    assert all(found[0].startswith("<svg") for found in maps)


@pytest.mark.slow
@pytest.mark.usefixtures("_really_drawn")
def test_a_real_run_is_reported_from_its_own_folder(tmp_path):
    from flower_vfl.apps import run
    from tests.toys import toy_config, toy_data

    names = ["clustering", "model_completion(k=1,draws=2)", "model_completion(k=4,draws=2)"]
    config = toy_config(attack={"names": names, "embeddings": 40, "rebuilt": 0.1}, training={"epochs": 15})
    run(config, data=lambda _: toy_data(rows=200, test_rows=80, classes=3), out=tmp_path / "run")
    assert (tmp_path / "run" / "embeddings.parquet").stat().st_mode & 0o077 == 0
    text = page(render([tmp_path / "run"])).text
    assert re.search(r"leaked labels (are enough|would be needed) to rebuild the model", text)
    assert text.count("angle between two embeddings") == 2
    assert json.loads((tmp_path / "run" / "result.json").read_text())["rebuild"][0]["metric"] == "balanced_accuracy"
