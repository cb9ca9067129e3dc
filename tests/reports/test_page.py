"""The page: everything that a privacy officer needs, in one file, whatever the run's files say."""

import json
import re
from html.parser import HTMLParser

import pytest

from flower_vfl.errors import InputError
from flower_vfl.reports import render
from flower_vfl.tracking import StepLog

VOID = {"meta", "br", "link", "img", "hr", "input"}
SVG_VOID = {"path", "use", "rect", "line", "circle"}


class Page(HTMLParser):
    """Reads a page, checks that every tag is closed, and collects tags, attributes and text."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.attributes, self.words = [], [], [], []
        self.feed(html)
        self.close()
        assert self.open == []
        self.text = re.sub(r"\s+", " ", " ".join(self.words))

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def page(path):
    return Page(path.read_text(encoding="utf-8"))


def change(folder, edit):
    result = json.loads((folder / "result.json").read_text())
    edit(result)
    (folder / "result.json").write_text(json.dumps(result))


def test_a_run_without_defense_says_what_leaks_and_that_nothing_was_done_about_it(run_folder):
    folder = run_folder("census-none")
    path = render([folder])
    assert path == folder / "report.html"
    text = page(path).text
    assert "reads the labels almost completely ." in text
    assert "No defense was used" in text
    assert "149,271 people, 8.3 % of them positive" in text
    assert "75,034 others. Epochs: 6." in text
    assert "The feature parties a and b have columns about the same people. They exchange" in text
    worst = max(entry["q95"] for entry in json.loads((folder / "result.json").read_text())["leakage"])
    assert f"{worst:.3f}" in text


def test_a_run_with_a_defense_names_it_and_its_strength(run_folder):
    text = page(render([run_folder(defenses=[{"name": "marvell", "params": {"s": 4.0}}], leak=0.5)])).text
    assert "Defense in use: marvell (s = 4.0)." in text
    assert "No defense" not in text
    assert "no better than by guessing" in text


def test_utility_cost_digests_and_the_parties_alone_are_there(run_folder):
    text = page(render([run_folder()])).text
    for wanted in (
        *("Last epoch", "Best by validation", "0.9321", "0.9325", "Calibration error (ACE)", "Test accuracy"),
        *("a alone", "0.8791", "label alone", "0.9222", "together"),
        *("Steps per second", "51.6", "98.5 MiB", "11.6 s", "9.8 s"),
        *("9f" * 32, "3c" * 32, "2.13.0+cpu", "batch_size = 1024"),
        *("What was not tested", "Active attackers", "Leak along training", "AUC by epoch", "Loss by epoch"),
        *("Attack norm, party a", "Attack norm, party b", "first layer", "0.554"),
    ):
        assert wanted in text, wanted


def test_what_a_result_does_not_have_is_left_out_or_dashed(run_folder):
    folder = run_folder(steps=3, epochs=1)
    change(folder, lambda result: [result.pop(key) for key in ("alone", "weights", "environment")])
    change(folder, lambda result: result.update(cost={}, dataset={}, leakage=[], utility={"last": {}, "best": None}))
    text = page(render([folder])).text
    assert "not measured" in text
    assert "alone" not in text
    assert "none ran" in text


def test_missing_values_and_one_class_steps_do_not_hide_the_entry(run_folder):
    folder = run_folder(steps=3, epochs=1)
    empty = dict.fromkeys(("q95", "q95_null", "mean", "max"))
    change(folder, lambda result: result["leakage"][0].update(empty, one_class_steps=3))
    assert "–" in page(render([folder])).text


def test_scores_that_are_wrong_more_often_than_chance_are_pointed_out(run_folder):
    text = page(render([run_folder(leak=0.08, steps=300, parties=("a",))])).text
    assert re.search(r"turned around they reach 0\.[789]", text)
    assert "reads the labels well" in text


def test_a_run_that_did_not_end_as_planned_says_so_and_why(run_folder):
    folder = run_folder(steps=3, epochs=1)
    assert "planned end" not in page(render([folder])).text
    change(folder, lambda result: result.update(status="failed", error="party b died"))
    assert "planned end: failed. party b died" in page(render([folder])).text


def test_columns_of_the_label_party_are_mentioned(run_folder):
    folder = run_folder(steps=3, epochs=1)
    assert "columns of its own" not in page(render([folder])).text
    change(folder, lambda result: result["parties"].update(label_features=True))
    assert "keeps the labels, and has columns of its own." in page(render([folder])).text


def test_parties_are_known_by_their_weights_where_nothing_else_names_them(run_folder):
    folder = run_folder(steps=3, epochs=1)
    change(folder, lambda result: result.pop("parties"))
    assert "The feature parties a and b have" in page(render([folder])).text


def test_the_monitor_stands_in_where_no_attacker_reported(run_folder):
    folder = run_folder(steps=1, epochs=1)
    (folder / "steps.parquet").unlink()
    with StepLog(folder) as log:
        log.add(step=0, epoch=0, party="a", layer="cut", attack="norm", metric="monitor_auc", value=0.9)
    assert "cut layer (monitor)" in page(render([folder])).text
    assert "cut layer (monitor)" not in page(render([run_folder("both", steps=40)])).text


def test_a_killed_run_is_reported_from_its_journal(run_folder):
    folder = run_folder(steps=40)
    (folder / "steps.parquet").unlink()
    with StepLog(folder, name="a") as log:
        log.add(step=0, epoch=0, party="ghost", layer="cut", attack="norm", metric="auc", value=0.9)
    assert "party ghost" in page(render([folder])).text


@pytest.mark.parametrize("several", [False, True])
def test_the_page_needs_nothing_from_elsewhere_and_is_small(run_folder, several):
    folders = [run_folder(f"run{i}", parties=("a", "b", "c", "d")) for i in range(1 + 4 * several)]
    path = render(folders)
    html = path.read_text()
    assert path.stat().st_size < 1_000_000
    found = page(path)
    assert not {"script", "link", "iframe", "object", "img"} & set(found.tags)
    for name, value in found.attributes:
        assert name not in ("src", "onload", "onerror", "onclick")
        assert name not in ("href", "xlink:href") or value.startswith("#")
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)
    assert "default-src 'none'" in html
    assert "prefers-color-scheme: dark" in html
    assert "@media print" in html
    assert 'name="viewport"' in html


HOSTILE = "</pre></style><script>alert('x')</script><img src=x onerror=alert(1)>\"' $&{{ 7 * 7 }}"


def poisoned(value):
    """The same structure with every text replaced, numbers kept."""
    if isinstance(value, dict):
        return {key: poisoned(item) for key, item in value.items()}
    if isinstance(value, list):
        return [poisoned(item) for item in value]
    return HOSTILE if isinstance(value, str) else value


@pytest.mark.parametrize("several", [False, True])
def test_hostile_text_anywhere_stays_text(run_folder, several):
    folder = run_folder(
        f"<b>{HOSTILE[:5].replace('/', '')}", steps=20, defenses=[{"name": "iso", "params": {"t": "1"}}]
    )
    result = poisoned(json.loads((folder / "result.json").read_text()))
    for entry in result["leakage"]:
        entry["metric"] = "auc"
    for place in ("weights", "environment", "alone"):
        result[place] = {HOSTILE: HOSTILE}
    for which in ("last", "best"):
        result["utility"][which] |= {HOSTILE: HOSTILE, "epoch": HOSTILE}
    result["defenses"][0]["params"] = {HOSTILE: HOSTILE}
    result["dataset"]["positives"] = result["cost"]["seconds"] = HOSTILE
    (folder / "result.json").write_text(json.dumps(result))
    text = json.dumps(HOSTILE)
    (folder / "config.toml").write_text(f"# {HOSTILE}\n[parties]\nfeatures = [{text}]\n[data]\nname = {text}\n")
    with StepLog(folder) as log:
        log.add(step=0, epoch=0, party=HOSTILE, layer=HOSTILE, attack=HOSTILE, metric="auc", value=0.9)
    path = render([folder] * (1 + several), folder / "page.html")
    found = page(path)
    assert not {"script", "img"} & set(found.tags)
    assert all(name not in ("onerror", "src") for name, _ in found.attributes)
    assert found.text.count(HOSTILE) > 10


@pytest.mark.parametrize("name", ["config.toml", "result.json", "steps.parquet"])
def test_a_missing_file_is_named_and_nothing_is_written(run_folder, name):
    folder = run_folder(steps=3, epochs=1)
    (folder / name).unlink()
    with pytest.raises(InputError, match=re.escape(str(folder / name))):
        render([folder])
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize("name", ["config.toml", "result.json", "steps.parquet"])
@pytest.mark.parametrize("content", [b"\xff\xfe not text", b"= [", b'{"schema": 2}', b"[1]"])
def test_a_corrupt_file_is_named_and_nothing_is_written(run_folder, name, content):
    if (name, content) == ("config.toml", b"[1]"):
        content = b"[1"
    folder = run_folder(steps=3, epochs=1)
    (folder / name).write_bytes(content)
    with pytest.raises(InputError, match=re.escape(str(folder / name))):
        render([folder])
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(
            ("utility", []),
            ("leakage", {}),
            ("leakage", ["x"]),
            ("cost", None),
            ("weights", "x"),
            ("defenses", ["iso"]),
        ),
        ("leakage", [{"q95": "0.9"}]),
        ("alone", 3),
    ],
)
def test_a_result_of_another_shape_is_refused_with_the_key(run_folder, key, value):
    folder = run_folder(steps=3, epochs=1)
    change(folder, lambda result: result.update({key: value}))
    with pytest.raises(InputError, match=r"result\.json.*" + ("q95" if value == [{"q95": "0.9"}] else key)):
        render([folder])


def test_several_runs_are_compared_in_the_folder_that_holds_them(run_folder, tmp_path):
    defended = [{"name": "iso", "params": {"t": 1.0}}]
    folders = [run_folder("plain", steps=60), run_folder("guarded", steps=60, defenses=defended, leak=0.55, seed=1)]
    path = render(folders)
    assert path == tmp_path / "report.html"
    text = page(path).text
    for wanted in ("2 runs compared", "plain", "guarded", "iso (t = 1.0)", "none", "0.9321", "Privacy against utility"):
        assert wanted in text
    assert "do not compare" not in text
    assert not (folders[0] / "report.html").exists()


def test_runs_on_different_data_are_not_compared_silently(run_folder):
    folders = [run_folder("one", steps=3, epochs=1), run_folder("two", steps=3, epochs=1)]
    change(folders[1], lambda result: result["dataset"].update(name="criteo"))
    assert "their numbers do not compare" in page(render(folders)).text


def test_a_run_that_measured_no_leak_can_be_compared(run_folder):
    folders = [run_folder("one", steps=3, epochs=1), run_folder("two", steps=3, epochs=1)]
    for folder in folders:
        change(folder, lambda result: result.update(leakage=[]))
    assert "not measured" in page(render(folders)).text


def test_the_page_goes_where_it_is_asked_to(run_folder, tmp_path):
    assert render([run_folder(steps=3, epochs=1)], tmp_path / "x.html") == tmp_path / "x.html"
    assert (tmp_path / "x.html").exists()


def test_the_same_run_gives_the_same_page(run_folder, tmp_path):
    folder = run_folder(steps=60)
    assert render([folder]).read_bytes() == render([folder], tmp_path / "again.html").read_bytes()


def test_no_folder_is_refused():
    with pytest.raises(InputError, match="at least one"):
        render([])
