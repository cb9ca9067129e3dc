"""Types and statistics of columns, as the command line shows them, compared with the files."""

import shlex
import shutil
import tomllib

import numpy as np
import pytest

from flower_vfl.cli import main
from flower_vfl.config import build_config, to_toml
from flower_vfl.data.encoding.columns import Column, class_counts, columns_of
from flower_vfl.data.sources.catalog import load, prepare
from flower_vfl.data.store.dataset import open_dataset
from flower_vfl.errors import DataError
from flower_vfl.simulations.tables import print_columns
from tests.data.clicks.click_files import criteo_rows, write_criteo

ROWS = 400


@pytest.fixture
def own_tables(tmp_path):
    """Write two parties' files, with numbers, missing and skewed ones, categories and rare values."""
    rng = np.random.default_rng(0)
    ids = [f"p{number:03d}" for number in range(ROWS)]
    town = np.where(rng.random(ROWS) < 0.1, "", rng.choice(["Ulm", "Bonn", "Kiel"], ROWS))
    town[5] = "Hof"
    income = [f"{value:.3f}" for value in rng.lognormal(3, 2, ROWS)]
    age = ["" if rng.random() < 0.2 else str(rng.integers(18, 80)) for _ in range(ROWS)]
    floors = rng.integers(0, 5, ROWS)
    tables = {
        "shop": {"id": ids, "town": town, "income": income, "age": age},
        "bank": {"id": ids, "floor": floors, "height": rng.normal(size=ROWS), "label": rng.integers(0, 2, ROWS)},
    }
    for name, table in tables.items():
        rows = zip(*table.values(), strict=True)
        text = "\n".join([",".join(table), *(",".join(map(str, row)) for row in rows)])
        (tmp_path / f"{name}.csv").write_text(text + "\n")
    files = {name: str(tmp_path / f"{name}.csv") for name in tables}
    return tables, {"files": files, "missing": "mean", "min_count": 2}


def shares(dataset, table, name):
    """Return the share of missing values and the values of a column in the training rows, from the file."""
    known = dict(zip(table["id"], table[name], strict=True))
    values = np.array([str(known[row]) for row in dataset.ids("train")])
    return float((values == "").mean()), values


def test_columns_have_the_types_the_missing_shares_and_the_values_of_the_training_rows(own_tables):
    tables, options = own_tables
    dataset = load("files", options=options)
    found = {(column.party, column.name): column for column in columns_of(dataset)}
    missing, towns = shares(dataset, tables["shop"], "town")
    names, counts = np.unique(towns, return_counts=True)
    rare = int(counts[counts < 2].sum())
    expected = {
        ("shop", "town"): Column(
            "shop",
            "town",
            "category",
            missing,
            int((counts >= 2).sum()),
            rare / len(towns),
            why="texts",
            change=("town", "ignore"),
        ),
        ("bank", "height"): Column(
            "bank", "height", "number", 0.0, why="reads as numbers", change=("height", "category")
        ),
        ("bank", "floor"): Column("bank", "floor", "number", 0.0, why="reads as numbers", change=("floor", "category")),
    }
    for key, column in expected.items():
        assert found[key] == column
    assert "" in names
    age, _ = shares(dataset, tables["shop"], "age")
    assert found["shop", "age"].missing == pytest.approx(age)
    assert found["shop", "income"].kind == "number, log"
    assert set(found) == {*expected, ("shop", "age"), ("shop", "income")}


def test_a_type_that_is_named_is_the_one_that_is_shown(own_tables):
    _, options = own_tables
    dataset = load("files", options={**options, "categorical": ["floor"], "ignore": ["height"]})
    found = {column.name: column for column in columns_of(dataset)}
    assert (found["floor"].kind, found["floor"].values) == ("category", 5)
    height = found["height"]
    assert (height.kind, height.change) == ("left out", ("height", "category"))


@pytest.mark.parametrize(("min_count", "known"), [(1, True), (3, True), (150, False)])
def test_missing_values_that_are_too_rare_for_an_id_have_an_unknown_share(own_tables, min_count, known):
    tables, options = own_tables
    dataset = load("files", options={**options, "min_count": min_count})
    town = next(column for column in columns_of(dataset) if column.name == "town")
    missing, _ = shares(dataset, tables["shop"], "town")
    assert town.missing == (missing if known else None)
    assert missing > 0


def test_a_column_without_rare_values_lacks_none_where_none_is_missing(own_tables):
    _, options = own_tables
    found = columns_of(load("files", options={**options, "categorical": ["floor"], "min_count": 3}))
    floor = next(column for column in found if column.name == "floor")
    assert (floor.missing, floor.rare) == (0.0, 0.0)


def test_numbers_that_count_as_zero_where_they_are_missing_have_an_unknown_share(tmp_path):
    path = write_criteo(tmp_path / "train.txt", criteo_rows(300))
    found = columns_of(prepare("criteo", source=path, out=tmp_path / "out", published=True))
    assert {column.missing for column in found if column.kind.startswith("number")} == {None}
    known = columns_of(prepare("criteo", source=path, out=tmp_path / "other"))
    assert all(column.missing is not None for column in known)


@pytest.mark.parametrize(
    ("name", "options", "kinds"),
    [
        ("digits", {}, {"numbers 1 x 8 x 4"}),
        ("synthetic", {"rows": 60, "test_rows": 20}, {"number", "category"}),
        ("breast-cancer", {}, {"number", "number, log"}),
    ],
)
def test_every_kind_of_data_can_be_shown(name, options, kinds):
    found = columns_of(load(name, options=options))
    assert found
    assert {column.kind for column in found} == kinds


def test_only_what_this_host_holds_is_shown(own_tables, tmp_path):
    from flower_vfl.data.store.parts import write_part

    _, options = own_tables
    folder = load("files", options=options).folder
    part = write_part(folder, "shop", tmp_path / "part")
    assert {column.party for column in columns_of(part)} == {"shop"}


def test_the_command_line_shows_the_columns_after_preparing_and_later(own_tables, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    _, options = own_tables
    settings = [f"files.{party}={path}" for party, path in options["files"].items()]
    arguments = ["data", "prepare", "files", "--out", str(tmp_path / "out"), "--set", "missing=mean"]
    for setting in [*settings, "categorical=floor"]:
        arguments += ["--set", setting]
    with pytest.raises(SystemExit) as done:
        main(arguments)
    assert done.value.code == 0
    prepared = capsys.readouterr().out
    with pytest.raises(SystemExit) as done:
        main(["data", "show", str(tmp_path / "out")])
    assert done.value.code == 0
    shown = capsys.readouterr().out
    rows = [line for line in shown.splitlines() if "│" in line]
    assert len(rows) == 5
    assert all(row in prepared for row in rows)
    assert any("bank" in row and "floor" in row and "category" in row and " 5 " in row for row in rows)
    assert "--set dtype.postcode=category" in prepared
    labels = load("files", options=options).labels().train
    negatives, positives = np.bincount(labels)
    counts = f"'0': {negatives}, '1': {positives}" if negatives >= positives else f"'1': {positives}, '0': {negatives}"
    for text in (prepared, shown):
        assert f"training rows of 2 classes: {counts}" in text
        assert "Positive class: '1' (the label whose probability is predicted, against '0')" in text


def test_the_columns_of_a_configuration_and_of_a_run_are_shown_without_preparing_by_hand(own_tables, tmp_path, capsys):
    _, options = own_tables
    config = tmp_path / "run.toml"
    config.write_text(to_toml(build_config({"data": {"name": "files", "options": options}})))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text(config.read_text())
    print_columns(load("files", options=options), toml=True)
    expected = capsys.readouterr().out
    for source, where in ((config, str(config)), (tmp_path / "run", "the configuration of another run")):
        with pytest.raises(SystemExit) as done:
            main(["data", "show", str(source)])
        assert done.value.code == 0
        line = f"to change the type of a column, write the line behind it below [data.options] in {where}\n"
        assert capsys.readouterr().out == expected + line


def test_an_option_that_changes_a_column_works_where_it_is_shown(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    rows = [f"p{number},{number},{number % 9},{number % 2}" for number in range(60)]
    (tmp_path / "a.csv").write_text("id,letzter Kontakt,größe,label\n" + "\n".join(rows) + "\n")
    options = {"files": {"a": str(tmp_path / "a.csv")}}
    dataset = prepare("files", out=tmp_path / "whole", options=options)
    shown = {}
    for toml in (False, True):
        print_columns(dataset, toml=toml)
        shown[toml] = [line.split("│")[-2].strip() for line in capsys.readouterr().out.splitlines() if "│" in line]
    given = {"letzter Kontakt": "category", "größe": "category"}
    assert tomllib.loads("\n".join(shown[True])) == {"dtype": given}
    words = [shlex.split(line) for line in shown[False]]
    assert words == [["--set", f"dtype.{name}={kind}"] for name, kind in given.items()]


def test_a_table_that_does_not_fit_becomes_lines_with_whole_names_and_options(tmp_path, capsys, monkeypatch):
    long = "average_balance_of_the_last_twelve_months_in_euros"
    rows = [f"p{number},{number / 7:.2f},{'xyz'[number % 3]},{number % 2}" for number in range(90)]
    (tmp_path / "a.csv").write_text(f"id,{long},colour,label\n" + "\n".join(rows) + "\n")
    dataset = prepare("files", out=tmp_path / "whole", options={"files": {"a": str(tmp_path / "a.csv")}})
    shown = {}
    for width in (60, 80, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        print_columns(dataset)
        shown[width] = capsys.readouterr().out.splitlines()
    columns = len(dataset.encoding("a").reader.columns) * 3 + 1
    assert shown[60][:columns] == shown[80][:columns]
    assert max(len(line) for line in shown[80] if "to change" not in line) <= 80  # an option is not broken
    assert f"a: {long}" in shown[80]
    assert f"    to change: --set dtype.{long}=category" in shown[80]
    assert "    category; missing 0 %; 3 values; rare 0 %; texts" in shown[80]
    monkeypatch.setenv("COLUMNS", "40")
    print_columns(dataset)
    narrow = capsys.readouterr().out.splitlines()
    place = narrow.index("a: colour") + 1
    assert narrow[place : place + 2] == ["    category; missing 0 %; 3 values;", "    rare 0 %; texts"]
    assert any(f"│ {long} " in line and f" --set dtype.{long}=category │" in line for line in shown[200])


def test_only_the_largest_of_many_classes_are_counted_out_and_none_without_labels(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    rows = [f"p{number},{number % 7},c{min(number % 30, 11):02d}" for number in range(600)]
    (tmp_path / "a.csv").write_text("id,x,label\n" + "\n".join(rows) + "\n")
    dataset = prepare("files", out=tmp_path / "whole", options={"files": {"a": str(tmp_path / "a.csv")}})
    counts = class_counts(dataset)
    names, numbers = np.unique([dataset.class_names[label] for label in dataset.labels().train], return_counts=True)
    assert counts == dict(zip(names.tolist(), numbers.tolist(), strict=True))
    print_columns(dataset)
    shown = capsys.readouterr().out
    assert f"training rows of 12 classes: 'c11': {counts['c11']}, " in shown
    assert "and 2 smaller ones" in shown
    shutil.rmtree(dataset.folder / "labels")
    assert class_counts(dataset) == {}
    print_columns(open_dataset(dataset.folder))
    assert "classes" not in capsys.readouterr().out


def test_a_file_that_was_changed_is_named(own_tables):
    _, options = own_tables
    folder = load("files", options=options).folder
    (folder / "shop" / "train" / "categorical.npy").write_bytes(b"no")
    with pytest.raises(DataError, match=r"categorical\.npy"):
        columns_of(open_dataset(folder))
