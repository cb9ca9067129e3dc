"""Results by class: their words on the console, their table and matrix on the page, names in place of numbers."""

import re

import pytest

from flower_vfl.apps.result import describe_classes
from flower_vfl.apps.result_schema import class_name
from flower_vfl.reports import render
from flower_vfl.reports.advice import advice
from flower_vfl.reports.classes import MOST_CLASSES, classes_in
from flower_vfl.reports.headline import headline_of
from flower_vfl.reports.run import load_run
from flower_vfl.reports.words import not_tested
from flower_vfl.simulations.tables import print_results
from flower_vfl.tracking import StepLog, merge_steps
from tests.reports.test_headline import informed, result, step
from tests.reports.test_page import change, page

pytestmark = pytest.mark.usefixtures("_sketched")

PETS = ("cat", "dog", "hamster")
COUNTS = [[9, 1, 0], [0, 10, 0], [3, 1, 1]]


@pytest.fixture
def pets_folder(run_folder):
    """Return the folder of a run that predicts one of three pets."""
    folder = run_folder(steps=30, epochs=1, parties=("a",))

    def of_pets(found):
        found["dataset"].update(classes=3, positives=None)
        for values in found["utility"].values():
            values.update(test_auc=None, test_macro_auc=0.9, validation_macro_auc=0.9)
            del values["validation_auc"]
        found["classes"] = describe_classes(PETS, COUNTS)

    change(folder, of_pets)
    return folder


def section(folder):
    """Return the HTML of the section on classes; empty where there is none."""
    _, _, rest = render([folder]).read_text(encoding="utf-8").partition('<h2 id="classes">')
    return rest.partition("<h2>")[0]


def test_the_line_names_the_class_with_the_lowest_recall_and_its_most_frequent_error():
    found = classes_in({"classes": describe_classes(PETS, COUNTS)})
    assert found.line == (
        "Of 3 classes hamster is recognised least: 0.2000 of its 5 test rows; it is most often taken for cat."
    )
    never = classes_in({"classes": describe_classes(PETS, [[5, 0, 0], [0, 5, 0], [2, 0, 0]])})
    assert never.line.endswith('taken for cat. For rare classes there is training.class_weights = "balanced".')
    perfect = classes_in({"classes": describe_classes(PETS, [[1, 0, 0], [0, 2, 0], [0, 0, 0]])})
    assert perfect.line.startswith("Of 3 classes each test row is recognised. No test row is of class hamster:")
    assert perfect.shown[2] == ("hamster", 0, None, None, "")


@pytest.mark.parametrize("classes", [{}, {"names": list(PETS)}, describe_classes(PETS, [[0] * 3] * 3)])
def test_without_test_rows_there_are_no_results_by_class(classes, run_folder):
    assert classes_in({"classes": classes}) is None
    folder = run_folder(steps=3, epochs=1)
    change(folder, lambda found: found.update(classes=classes))
    assert not section(folder)


def test_the_console_names_a_rare_class_that_is_never_recognised(pets_folder, capsys):
    line = "Of 3 classes hamster is recognised least"
    many = load_run(pets_folder).result
    two = {
        **many,
        "dataset": {**many["dataset"], "classes": 2},
        "classes": describe_classes(PETS[:2], [[2, 0], [1, 1]]),
    }
    print_results([many])
    assert line in " ".join(capsys.readouterr().out.split())
    print_results([two])
    assert "recognised least" not in capsys.readouterr().out
    rare, even = ({**two, "classes": describe_classes(PETS[:2], [[9, 0], [count, 0]])} for count in (2, 9))
    print_results([rare])
    assert 'training.class_weights = "balanced"' in " ".join(capsys.readouterr().out.split())
    print_results([even])
    assert "recognised least" not in capsys.readouterr().out
    print_results([many, {**many, "defenses": [{"name": "iso"}]}])
    assert f"iso: {line}" in " ".join(capsys.readouterr().out.split())


def test_the_console_names_classes_of_which_no_test_row_is():
    for known in ([[9, 1], [0, 5]], [[9, 0], [0, 5]]):
        counts = [[*row, 0] for row in known] + [[0, 0, 0]]
        line = classes_in({"classes": describe_classes(PETS, counts)}).line
        assert line.endswith(f" No test row is of class {PETS[2]}: how well it is recognised is not known.")


def test_the_page_has_each_class_by_its_name_and_the_confusion_matrix(pets_folder):
    found = section(pets_folder)
    rows = re.findall(r"<tr><td>(\w+)</td>" + r'<td class="n">([\d.]+)</td>' * 3, found)
    assert rows == [
        ("cat", "10", "0.900", "0.750"),
        ("dog", "10", "1.000", "0.833"),
        ("hamster", "5", "0.200", "1.000"),
    ]
    assert re.findall(r"<th>(?:<b>\w</b> )?(\w+)</th>", found) == ["Class", "A", "B", "C", *PETS]
    cells = re.findall(r'<td class="(\w+)" style="--share: ([\d.]+)%" title="([^"]+)">(\d*)</td>', found)
    assert [text for *_, text in cells] == ["90", "10", "", "", "100", "", "60", "20", "20"]
    assert [kind for kind, *_ in cells] == [
        "right",
        "wrong",
        "wrong",
        "wrong",
        "right",
        "wrong",
        "wrong",
        "wrong",
        "right",
    ]
    assert cells[6][1:3] == ("60.0", "3 of 5 rows of hamster taken for cat")


def test_the_page_of_two_classes_names_the_threshold_and_the_positive_class(run_folder):
    folder = run_folder(steps=3, epochs=1)
    assert "at a score of 0.5" not in section(folder)
    change(folder, lambda found: found.update(classes=describe_classes(["<=50K", ">50K"], [[7, 3], [1, 4]])))
    assert "at a score of 0.5" in section(folder)
    assert "<td>&gt;50K</td>" in section(folder)
    assert "8.3 % of them positive (label >50K)" in page(render([folder])).text


def test_short_names_head_the_columns_of_the_matrix_themselves(pets_folder):
    change(pets_folder, lambda found: found["classes"].update(names=["1", "2", "10"]))
    assert re.findall(r"<th>([^<]+)</th>", section(pets_folder))[-6:] == ["1", "2", "10"] * 2


def test_of_very_many_classes_the_page_has_those_that_are_recognised_least(pets_folder):
    count = MOST_CLASSES + 3
    counts = [
        [5 if other == place else int(other == 0 and place > 2) for other in range(count)] for place in range(count)
    ]
    names = [f"kind {place}" for place in range(count)]
    change(pets_folder, lambda found: found.update(classes=describe_classes(names, counts)))
    found = section(pets_folder)
    assert f"the {MOST_CLASSES} of {count} classes" in found
    assert re.findall(r"<td>(kind \d+)</td>", found) == names[3:]
    assert 'class="matrix"' not in found


def test_a_class_has_its_name_wherever_the_verdict_or_a_gap_is_about_one(pets_folder):
    several = {"classes": {"names": list(PETS)}, "dataset": {"classes": 3, "positives": None}}
    worst = headline_of(result(step("norm", 0.7), informed(0.9, positive_class=2), **several)).worst
    assert worst.informed.endswith(", class hamster")
    few = result(informed(None, None, unavailable="1 of class 2 and 5 others"), **several)
    assert "1 of class hamster and 5 others" in headline_of(few).gaps
    config = pets_folder / "config.toml"
    config.write_text(config.read_text() + "[attack]\npositives = [0, 2]\n")
    assert "for examples of class cat and hamster alone" in " ".join(not_tested(load_run(pets_folder)))
    assert class_name({"classes": {"names": list(PETS)}}, 7) == "7"


def test_many_classes_are_drawn_and_advised_by_their_accuracy(pets_folder, run_folder):
    with StepLog(pets_folder) as log:
        for metric in ("validation_accuracy", "test_accuracy", "validation_macro_auc", "test_macro_auc"):
            log.add(step=29, epoch=1, party="label", layer="", attack="", metric=metric, value=0.8)
    merge_steps(pets_folder)
    found = page(render([pets_folder])).text
    assert "Accuracy by epoch" in found
    assert "AUC by epoch, mean over classes" in found
    assert "Test AUC –" not in found
    two = page(render([run_folder("two", steps=3, epochs=1)])).text
    assert "AUC by epoch" in two
    assert "Accuracy by epoch" not in two
    other = run_folder("other", steps=30, epochs=1, parties=("a",), defenses=[{"name": "marvell", "params": {"s": 1}}])
    change(other, lambda found: found.update(utility=load_run(pets_folder).result["utility"]))
    compared = render([pets_folder, other], pets_folder.parent / "compared.html").read_text(encoding="utf-8")
    assert compared.count("test accuracy (right is better)") >= 2
    assert "test AUC" not in compared
    baseline = {**load_run(pets_folder).result, "baseline": "no_gradients"}
    assert "a defense with a lower test accuracy than this run" in " ".join(advice(baseline, headline_of(baseline)))


def test_the_page_calls_files_of_the_user_tables_of_ones_own(pets_folder):
    assert "predicts the label of census-income" in page(render([pets_folder])).text
    change(pets_folder, lambda found: found["dataset"].update(name="files"))
    assert "predicts the label of your own tables ," in page(render([pets_folder])).text
