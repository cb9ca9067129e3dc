import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from flower_vfl.data.formats.tables import read_table
from flower_vfl.data.sources.catalog import load, prepare
from flower_vfl.data.sources.id_sources import id_sources
from flower_vfl.data.store.parts import write_part
from flower_vfl.errors import ConfigError, DataError

ROWS = 60


def columns(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "id": [f"p{number:03d}" for number in range(ROWS)],
        "income": [f"{value:.3f}" for value in rng.normal(size=ROWS)],
        "town": rng.choice(["Ulm", "Bonn", ""], ROWS).tolist(),
    }


def bank():
    rng = np.random.default_rng(1)
    return {
        "id": [f"p{number:03d}" for number in rng.permutation(ROWS)],
        "balance": rng.integers(0, 900, ROWS).tolist(),
        "label": rng.choice(["good", "bad"], ROWS).tolist(),
    }


def write_csv(path, table, delimiter=","):
    lines = [delimiter.join(table), *(delimiter.join(map(str, row)) for row in zip(*table.values(), strict=True))]
    content = "\n".join(lines) + "\n"
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(content.encode()))
    else:
        path.write_text(content, encoding="utf8")
    return str(path)


@pytest.fixture
def two(tmp_path):
    """Write two parties' files, the second with the labels, and return the options."""
    files = {"a": write_csv(tmp_path / "a.csv", columns()), "b": write_csv(tmp_path / "b.csv", bank())}
    return {"files": files, "positive": "bad"}


def changed(tmp_path, name="a.csv", **more):
    table = (columns() if name == "a.csv" else bank()) | more
    return write_csv(tmp_path / name, table)


def raw_rows(dataset, party, part):
    """Return the encoded rows of a party, by ID."""
    table = dataset.party(party)
    source = table.train if part == "train" else table.test
    gathered = source.gather(np.arange(len(source)))
    return {
        value: tuple(float(cell) for tensor in gathered for cell in tensor[row])
        for row, value in enumerate(dataset.ids(part))
    }


def test_rows_of_all_parties_are_the_same_people_in_sorted_order(two):
    dataset = load("files", options=two)
    encoding = dataset.encoding("b")
    for part in ("train", "test"):
        ids = dataset.ids(part)
        assert ids == sorted(ids)
        table = bank()
        where = {value: row for row, value in enumerate(table["id"])}
        labels = dataset.labels()
        found = labels.train if part == "train" else labels.test
        assert found.tolist() == [int(table["label"][where[value]] == "bad") for value in ids]
        balances = pa.table({"balance": [table["balance"][where[value]] for value in ids]})
        expected = encoding.encode(balances)[0][:, 0].tolist()
        assert [raw_rows(dataset, "b", part)[value][0] for value in ids] == pytest.approx(expected)
    assert dataset.alignment.rows + dataset.alignment.test_rows == ROWS
    assert dataset.label_party == "b"
    assert dataset.party("b").columns == ("balance",)
    assert dataset.party("a").columns == ("income", "town")


def test_each_party_alone_derives_the_same_order_and_test_set(two):
    together = load("files", options=two)
    alone = load("files", options={"files": {"a": two["files"]["a"]}, "label": "", "label_party": "b"})
    assert alone.alignment == together.alignment
    assert alone.label_party == "b"
    assert raw_rows(alone, "a", "test") == raw_rows(together, "a", "test")
    with pytest.raises(DataError, match="does not hold the labels"):
        alone.labels()


def test_order_and_split_do_not_depend_on_labels(two, tmp_path):
    before = load("files", options=two).alignment
    flipped = ["bad" if label == "good" else "good" for label in bank()["label"]]
    changed(tmp_path, "b.csv", label=flipped)
    assert load("files", options=two).alignment == before


def test_the_order_of_lines_in_a_file_does_not_matter(two, tmp_path):
    before = load("files", options=two)
    order = np.random.default_rng(3).permutation(ROWS)
    write_csv(tmp_path / "a.csv", {name: [values[row] for row in order] for name, values in columns().items()})
    after = load("files", options=two)
    assert after.alignment == before.alignment
    assert raw_rows(after, "a", "train") == raw_rows(before, "a", "train")


def test_encoders_see_training_rows_only(two, tmp_path):
    before = load("files", options=two)
    unlucky = before.ids("test")[0]
    table = columns()
    row = table["id"].index(unlucky)
    table["income"][row], table["town"][row] = "1e9", "Atlantis"
    write_csv(tmp_path / "a.csv", table)
    after = load("files", options=two)
    assert after.encoding("a") == before.encoding("a")
    assert raw_rows(after, "a", "test")[unlucky][1] == 0
    assert raw_rows(after, "a", "train") == raw_rows(before, "a", "train")


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".tsv", ".parquet"])
def test_every_kind_of_file_gives_the_same_data(two, tmp_path, suffix):
    path = tmp_path / f"same{suffix}"
    if suffix == ".parquet":
        table = columns()
        table["income"] = [float(value) for value in table["income"]]
        pq.write_table(pa.table(table), path)
    else:
        write_csv(path, columns(), "\t" if suffix == ".tsv" else ",")
    other = load("files", options=two | {"files": two["files"] | {"a": str(path)}})
    dataset = load("files", options=two)
    assert other.alignment == dataset.alignment
    assert raw_rows(other, "a", "train") == raw_rows(dataset, "a", "train")


def test_labels_may_have_a_file_of_their_own_with_a_party_without_features(tmp_path, two):
    table = bank()
    labels = write_csv(tmp_path / "y.csv", {"id": table["id"], "default": table["label"]})
    options = {"files": {"a": two["files"]["a"]}, "labels_file": labels, "label": "default", "positive": "bad"}
    dataset = load("files", options=options)
    assert dataset.label_party == "label"
    assert dataset.parties == ("a",)
    assert np.array_equal(dataset.labels().train, load("files", options=two).labels().train)
    only = load("files", options={"labels_file": labels, "label": "default"})
    assert only.parties == ()
    assert only.alignment == dataset.alignment


def test_the_label_is_no_feature_where_a_party_s_own_file_is_the_labels_file(two, caplog):
    files = two["files"]
    dataset = load("files", options={"files": files, "labels_file": files["b"], "label": "label"})
    assert (dataset.party("a").columns, dataset.party("b").columns) == (("income", "town"), ("balance",))
    few, label = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert few.startswith("only 14 of 60 rows are in the test part, too few to tell how well a model predicts")
    assert label.rpartition("/")[2] == "b.csv: column 'label', called like the label, is no feature of 'b'"


def test_label_party_chooses_the_file_of_the_label_and_other_parties_do_not_use_theirs(two, tmp_path):
    wrong = ["good"] * (ROWS - 1) + ["bad"]
    changed(tmp_path, label=wrong)
    with pytest.raises(DataError, match="in the files of a and b; name in label_party whose labels count, and the"):
        load("files", options=two)
    with pytest.raises(DataError, match="in the files of a and b; name in label_party"):
        load("files", options=two | {"label_party": "c"})
    dataset = load("files", options=two | {"label_party": "b"})
    assert (dataset.label_party, dataset.party("a").columns) == ("b", ("income", "town"))
    assert dataset.labels().train.sum() + dataset.labels().test.sum() == bank()["label"].count("bad")


def test_only_the_label_party_may_be_called_label(two, tmp_path):
    a, b = two["files"].values()
    named = prepare("files", out=tmp_path / "named", options=two | {"files": {"a": a, "label": b}})
    assert (named.label_party, named.parties) == ("label", ("a", "label"))
    wrong = two | {"files": {"label": a, "b": b}}
    for refused in (lambda: prepare("files", out=tmp_path / "out", options=wrong), lambda: id_sources(None, wrong)):
        with pytest.raises(DataError, match="a feature party cannot be called 'label', as results and files of the"):
            refused()
    assert not (tmp_path / "out").exists()


def test_test_files_replace_the_split(tmp_path, two):
    test = {name: values[:5] for name, values in columns(9).items()} | {"id": list("vwxyz")}
    more = {"id": list("zyxwv"), "balance": [1] * 5, "label": ["good", "bad", "good", "good", "bad"]}
    files = {"a": write_csv(tmp_path / "at.csv", test), "b": write_csv(tmp_path / "bt.csv", more)}
    dataset = load("files", options=two | {"test_files": files})
    assert (dataset.alignment.rows, dataset.alignment.test_rows) == (ROWS, 5)
    assert dataset.labels().test.tolist() == [1, 0, 0, 1, 0]
    write_csv(tmp_path / "at.csv", {"id": test["id"], "income": test["income"], "twon": test["town"]})
    with pytest.raises(DataError, match=r"at\.csv has no column 'town'; did you mean 'twon'"):
        load("files", options=two | {"test_files": files})
    write_csv(tmp_path / "at.csv", test | {"id": ["p001", *"wxyz"]})
    write_csv(tmp_path / "bt.csv", more | {"id": [*"zyxw", "p001"]})
    with pytest.raises(DataError, match="1 IDs are in training and in test files"):
        load("files", options=two | {"test_files": files})


def test_missing_numbers_are_refused_or_become_mean_and_indicator(tmp_path, two):
    income = columns()["income"]
    changed(tmp_path, income=["", *income[1:]])
    with pytest.raises(DataError, match=r"a\.csv: column 'income', row 1 below the header is missing"):
        load("files", options=two)
    dataset = load("files", options=two | {"missing": "mean"})
    assert dataset.party("a").columns == ("income", "income is missing", "town")
    rows = raw_rows(dataset, "a", "train") | raw_rows(dataset, "a", "test")
    assert rows["p000"][:2] == (0.0, 1.0)
    assert rows["p001"][1] == 0.0


def test_columns_can_be_declared_and_ignored(two):
    dataset = load("files", options=two | {"categorical": "balance", "ignore": ["town"]})
    assert dataset.party("a").spec.cardinalities == ()
    assert dataset.party("b").spec.numeric == 0
    with pytest.raises(DataError, match="column 'town', row 1 below the header holds"):
        load("files", options=two | {"numeric": ["town"]})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"ignore": ["income", "town"]},
            r"for party 'a': 'income', 'town' \(left out by the options ignore or dtype\); "
            "choose a column to keep, and take it out of these options$",
        ),
        (
            {"ignore": ["income"], "dtype.town": "ignore", "label": "label"},
            r"'income', 'town' \(left out by the options ignore or dtype\); choose a column to keep, and take it out",
        ),
    ],
)
def test_options_that_leave_no_column_are_named(two, options, words):
    with pytest.raises(DataError, match=words):
        load("files", options=two | options)


def test_a_column_that_no_option_names_is_the_example_of_what_to_keep(tmp_path):
    files = {"a": write_csv(tmp_path / "a.csv", {**columns(), "town": ["Ulm"] * ROWS})}
    words = r"'town' \(the same value .*\), 'income' \(left out by .*; name what to keep, as in dtype.town = "
    with pytest.raises(DataError, match=words):
        load("files", options={"files": files, "label": "", "ignore": ["income"]})


def test_bands_of_numbers_are_categories(two, tmp_path):
    changed(tmp_path, town=[("18_25", "26_35", "36_99")[row % 3] for row in range(ROWS)])
    dataset = load("files", options=two)
    assert dataset.encoding("a").categorical[0].values.to_pylist() == ["18_25", "26_35", "36_99"]


def test_codes_are_the_same_categories_in_a_test_file_whose_program_wrote_fractions(tmp_path):
    train = {"id": [f"p{row}" for row in range(40)], "code": [row % 4 for row in range(40)], "label": [0, 1] * 20}
    test = {"id": list("vwxyz"), "code": ["0.0", "3.0", "", "2.0", "7.0"], "label": [0, 1, 0, 1, 0]}
    files = {"a": write_csv(tmp_path / "a.csv", train)}
    test_files = {"a": write_csv(tmp_path / "t.csv", test)}
    dataset = load("files", options={"files": files, "test_files": test_files, "categorical": "code"})
    assert [raw_rows(dataset, "a", "test")[name] for name in "vwxyz"] == [(1,), (4,), (0,), (3,), (0,)]


def test_relative_names_are_looked_up_in_the_given_folder_and_dotted_keys_are_nested(two, tmp_path):
    dataset = load("files", path=tmp_path, options={"files.a": "a.csv", "files.b": "b.csv", "positive": "bad"})
    assert dataset.alignment == load("files", options=two).alignment


def test_an_inner_join_keeps_the_shared_people(two, tmp_path):
    ids = ["stranger", *columns()["id"][1:]]
    changed(tmp_path, id=ids)
    with pytest.raises(DataError, match=r"1 of 60 IDs in .*a\.csv are not in .*b\.csv, those of row 1 below"):
        load("files", options=two)
    dataset = load("files", options=two | {"join": "inner"})
    assert dataset.alignment.rows + dataset.alignment.test_rows == ROWS - 1
    assert "p000" not in {*dataset.ids("train"), *dataset.ids("test")}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"id": ["p001", *columns()["id"][1:]]}, r"a\.csv: 1 ID in column 'id' occurs more than once, in rows 1, 2"),
        (
            {"income": ["inf", *columns()["income"][1:]]},
            r"a\.csv: column 'income' is numbers but for .*'inf'|column 'income', row 1 below the header holds 'inf'",
        ),
        ({"income": [*columns()["income"][:-1], "12o"]}, r"a\.csv: column 'income'.*'12o'"),
        (
            {"income": [*columns()["income"][:7], "12o", *columns()["income"][8:]]},
            r"a\.csv: column 'income' is numbers but for 1 of .* the first in row 8 below the header, '12o'",
        ),
        ({"label": ["x"] * ROWS}, "the label 'label' is in the files of a and b"),
    ],
)
def test_a_broken_features_file_is_refused_by_name(two, tmp_path, change, text):
    changed(tmp_path, **change)
    with pytest.raises(DataError, match=text):
        prepare("files", out=tmp_path / "out", options=two)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"label": "lable"}, DataError, r"no file has the label column 'lable'; did you mean 'label'.*label = \"\""),
        ({"id": "idd"}, DataError, r"a\.csv has no column 'idd'; did you mean 'id'"),
        ({"label": "balance"}, DataError, "'balance' has .* different labels in"),
        ({"label": "income"}, DataError, "'income' looks like a regression target"),
        ({"label_party": "a"}, DataError, "label_party is 'a', but the label is in the file of 'b'"),
        ({"positive": "baad"}, DataError, "did you mean 'bad'"),
        ({"test_fraction": 1e-9}, DataError, "no row is left for the test part"),
        ({"test_fraction": 1.5}, ConfigError, "option test_fraction of files: .*below 1, given 1.5"),
        ({"join": "outer"}, ConfigError, "option join of files: .*'strict' or 'inner'"),
        ({"files": {}}, ConfigError, "name a file for at least one party"),
        ({"files": {"a": "/nowhere.csv"}}, DataError, "there is no file /nowhere.csv"),
        ({"files": {"../a": "a.csv"}}, DataError, "no party name"),
        ({"test_files": {"c": "x"}}, ConfigError, "test_files must name the parties of files, a, b"),
        ({"fyles": {}}, ConfigError, "did you mean 'files'"),
        (
            {"ignore": "incme"},
            ConfigError,
            "option ignore of files: no table has a column 'incme'; did you mean 'income'",
        ),
        ({"categorical": "town,balanc"}, ConfigError, "categorical of files: no table has a column 'balanc'; did you"),
        ({"numeric": ["x"]}, ConfigError, "option numeric of files: .*Allowed: balance, id, income, label, town"),
        ({"numeric": ["town"], "categorical": ["town"]}, ConfigError, "column .town. is in numeric and in categorical"),
        ({"delimiter": {"bb": ";"}}, ConfigError, "delimiter.bb: no file is that of 'bb'; did you mean 'b'"),
        ({"encoding.labels": "cp1252"}, ConfigError, "encoding.labels: no file is that of 'labels'; Allowed: a, b"),
        ({"label": "id"}, ConfigError, "'id' is the column of the ID, which cannot be the label"),
        ({"encoding.a": "utf-16"}, DataError, r"a\.csv is no text in utf-16, which the option encoding names"),
        (
            {"dtype.town": "categry"},
            ConfigError,
            "^options of files: dtype of column 'town' is one of number, .*; given 'categry'$",
        ),
        ({"test_labels_file": "y.csv"}, ConfigError, "test_files must name the parties of files, a, b"),
        ({"test_files": {"a": "x", "b": "y"}, "labels_file": "z"}, ConfigError, "labels_file and test_labels_file go"),
    ],
)
def test_wrong_options_are_refused_with_the_nearest_right_one(two, options, error, text):
    if "../a" in options.get("files", {}):
        options = {"files": {"../a": two["files"]["a"]}}
    with pytest.raises(error, match=text):
        load("files", options=two | options)


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("a.csv", b"", "is empty"),
        ("a.csv", b"id,x\n", "has no rows"),
        ("a.csv", b"id,x", "has no rows"),
        ("a.csv", b"\n\n", "is empty"),
        ("a.csv", b"id,x,x\n1,2,3\n", "several columns named 'x'"),
        ("a.csv", b"id,x\n1,2\n1,2,3\n", r"Expected 2 columns, got 3 \(row 2 below the header\); .*option delimiter"),
        (
            "a.csv",
            b"id,x\n1,2\n2,\xff\xfe\n",
            r"a\.csv: line 3 is no text in UTF-8; convert the file to UTF-8; .*encoding.*cp1252",
        ),
        ("a.csv", b"id,x\n" + b"1,2\n" * 300_000 + b"2,\xe9\n", "line 300002 is no text in UTF-8"),
        ("a.csv", b"id,\xfcx\n1,2\n", "line 1 is no text in UTF-8"),
        (
            "a.csv",
            "id,x\n1,2\n".encode("utf-16"),
            "is text in UTF-16; convert it to UTF-8; or set encoding",
        ),
        ("a.csv", b"id\n1\n2\n3\n4\n5\n6\n7\n8\n9\n", "no column is left for party 'a'"),
        ("a.csv.gz", b"id,x\n1,2\n", "cannot be read"),
        ("a.csv", gzip.compress(b"id,x\n1,2\n", mtime=0), r"a\.csv is gzipped: let its name end in \.csv\.gz"),
        ("a.parquet", b"PAR1nonsense", "cannot be read"),
        ("a.xlsx", b"", "files end in"),
        ("a.npy", b"", r"files end in .* or \.npz \(numpy\.savez of IDs and features\); images lie in a folder$"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path, name, content, text):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=text):
        load("files", options={"files": {"a": str(tmp_path / name)}, "label": ""})


def with_notes(**notes):
    """Return 40 rows whose last column is the given text of a row, by its number, and "ok" elsewhere."""
    lines = [f"p{row:02d},{row % 7},{notes.get(f'row{row}', 'ok')}" for row in range(1, 41)]
    return "\n".join(["id,x,note", *lines]) + "\n"


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
@pytest.mark.parametrize(
    ("content", "place"),
    [
        (with_notes(row10='"ok'), "row 10 below the header"),
        (with_notes(row10='"ok', row30='"ok'), "row 10 below the header"),
        (with_notes(row10='"5" pipe"'), "row 10 below the header"),
        (with_notes(row3='"fine"', row4='"on\ntwo lines"', row10='"ok'), "row 10 below the header"),
        ("\n" + with_notes(row10='"ok').replace("\np03", "\n\np03"), "row 10 below the header"),
        (with_notes().replace("note", '"note', 1), "the header"),
        (with_notes(row40='"ok'), "row 40 below the header"),
        (with_notes(row10='"ok' + "k" * 200_000), "row 10 below the header"),
    ],
)
def test_a_stray_quote_is_refused_by_its_row_and_no_row_is_lost(tmp_path, name, content, place):
    path = tmp_path / name
    path.write_bytes(gzip.compress(content.encode()) if name.endswith(".gz") else content.encode())
    with pytest.raises(DataError, match=rf"{name}: in {place} a quote begins a value, and no quote ends it"):
        read_table(path)


def test_quotes_that_belong_to_values_stay(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text('id\tnote\np1\t5" pipe\np2\t"5"" pipe"\np3\t"a\nb\tc"\n', encoding="utf-8-sig")
    assert read_table(path).to_pydict() == {"id": ["p1", "p2", "p3"], "note": ['5" pipe', '5" pipe', "a\nb\tc"]}
    assert read_table(path, "id").to_pydict() == {"id": ["p1", "p2", "p3"]}


def test_a_value_may_be_longer_than_pythons_reader_takes(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(f"id,photo\np1,{'x' * 200_000}\n")
    assert len(read_table(path)["photo"][0].as_py()) == 200_000


@pytest.mark.parametrize(
    ("header", "names"),
    [
        ('"town\n(name)",id,label', ["town\n(name)", "id", "label"]),
        ('id,"income\r\n\r\n(EUR)" ,label'.replace('" ,', '",'), ["id", "income\r\n\r\n(EUR)", "label"]),
        ("\n\nid, town ,label", ["id", "town", "label"]),
    ],
)
def test_a_header_of_several_lines_or_below_empty_ones_is_read_as_one(tmp_path, header, names):
    path = tmp_path / "a.csv"
    path.write_text(header + "\n" + "".join(f"x{row},y{row},{row % 2}\n" for row in range(9)), encoding="utf8")
    table = read_table(path)
    assert table.column_names == names
    assert table.column(0).to_pylist() == [f"x{row}" for row in range(9)]
    path.write_text(path.read_text() + "one,two\n")
    with pytest.raises(DataError, match=r"Expected 3 columns, got 2 \(row 10 below the header\);"):
        read_table(path)


@pytest.mark.parametrize("row", range(5))
def test_a_missing_label_is_refused_by_the_number_of_its_row_in_the_file(two, tmp_path, row):
    labels = bank()["label"]
    changed(tmp_path, "b.csv", label=[*labels[:row], "", *labels[row + 1 :]])
    with pytest.raises(
        DataError,
        match=rf"b\.csv: column 'label' has 1 missing label in the 60 rows of shared IDs, the first in row {row + 1} "
        rf"below the header; leave such rows out with unlabelled = \"drop\" below \[data\.options\]",
    ):
        load("files", options=two)


def test_a_person_who_is_not_in_all_files_needs_no_label(two, tmp_path):
    changed(tmp_path, id=["stranger", *columns()["id"][1:]])
    missing = ["" if value == "p000" else label for value, label in zip(bank()["id"], bank()["label"], strict=True)]
    changed(tmp_path, "b.csv", label=missing)
    dataset = load("files", options=two | {"join": "inner"})
    assert dataset.alignment.rows + dataset.alignment.test_rows == ROWS - 1


@pytest.mark.parametrize("value", ["", "inf", "1e200"])
def test_a_person_who_is_not_in_all_files_needs_no_number(two, tmp_path, value):
    changed(tmp_path, id=["stranger", *columns()["id"][1:]], income=[value, *columns()["income"][1:]])
    dataset = load("files", options=two | {"join": "inner"})
    assert dataset.alignment.rows + dataset.alignment.test_rows == ROWS - 1
    changed(tmp_path, id=["stranger", *columns()["id"][1:]], income=["1", value, *columns()["income"][2:]])
    with pytest.raises(DataError, match=r"a\.csv: column 'income', row 2 |numbers but for 1 of"):
        load("files", options=two | {"join": "inner"})


def manifest_of(folder):
    return (folder / "manifest.json").read_text()


def test_people_whom_others_lack_stay_in_their_party_s_folder(two, tmp_path):
    rows_a, rows_b = columns(), bank()
    only_a = {"id": ["x1", "x2", "x3"], "income": ["0.5", "", "1.5"], "town": ["Ulm", "Bonn", "Rome"]}
    changed(tmp_path, **{name: [*values, *only_a[name]] for name, values in rows_a.items()})
    only_b = {"id": ["y1", "y2", "y3", "y4"], "balance": [1, 2, 3, 4], "label": ["bad", "", "good", "never seen"]}
    changed(tmp_path, "b.csv", **{name: [*values, *only_b[name]] for name, values in rows_b.items()})
    dataset = prepare("files", out=tmp_path / "out", options=two | {"join": "inner", "positive": ""})
    dataset.verify()
    a, b = dataset.party("a"), dataset.party("b")
    encoded = dataset.encoding("a").encode(pa.table({name: [only_a[name][0], only_a[name][2]] for name in only_a}))
    assert [t.tolist() for t in a.unaligned.gather(np.arange(2))] == [array.tolist() for array in encoded]
    assert (len(a.unaligned), len(b.unaligned)) == (2, 2)  # a has one row without a number, b two without a known label
    encoded = dataset.encoding("b").encode(pa.table({"balance": [1, 3]}))
    assert b.unaligned.gather(np.arange(2))[0].tolist() == encoded[0].tolist()
    assert dataset.labels().unaligned.tolist() == [dataset.class_names.index(name) for name in ("bad", "good")]
    assert not {"x1", "x3", "y1"} & {*dataset.ids("train"), *dataset.ids("test")}

    part = write_part(tmp_path / "out", "a", tmp_path / "part")
    assert len(part.party("a").unaligned) == 2
    assert not (tmp_path / "part" / "b").exists()
    assert not (tmp_path / "part" / "labels").exists()
    changed(tmp_path)
    changed(tmp_path, "b.csv")
    plain = prepare("files", out=tmp_path / "plain", options=two | {"join": "inner", "positive": ""})
    assert plain.party("a").unaligned is plain.labels().unaligned is None
    assert manifest_of(tmp_path / "plain") == manifest_of(tmp_path / "out")
    rows = np.arange(dataset.alignment.rows)
    for one, other in zip(a.train.gather(rows), plain.party("a").train.gather(rows), strict=True):
        assert torch.equal(one, other)


def test_an_unaligned_row_that_lacks_its_number_is_left_out_with_its_label(two, tmp_path):
    more = {"id": ["y1", "y2", "y3"], "balance": [None, 2, 3], "label": ["bad", "good", "bad"]}
    changed(tmp_path, "b.csv", **{name: [*values, *more[name]] for name, values in bank().items()})
    dataset = load("files", options=two | {"join": "inner", "positive": "bad"})
    assert len(dataset.party("b").unaligned) == 2
    assert dataset.labels().unaligned.tolist() == [0, 1]


def test_an_unreadable_value_of_an_unaligned_row_leaves_out_unaligned_rows_only(two, tmp_path, caplog):
    changed(tmp_path, **{name: [*values, "?!" if name == "income" else "x"] for name, values in columns().items()})
    dataset = load("files", options=two | {"join": "inner"})
    assert dataset.party("a").unaligned is None
    assert "whose people others lack are not used" in caplog.text
    assert f"column 'income', row {ROWS + 1} below the header holds '?!'" in caplog.text
    assert dataset.alignment.rows + dataset.alignment.test_rows == ROWS


def test_with_a_positive_class_the_rest_of_unaligned_labels_is_the_other_one(two, tmp_path):
    more = {"id": ["y1", "y2", "y3"], "balance": [1, 2, 3], "label": ["bad", "good", "other"]}
    changed(tmp_path, "b.csv", **{name: [*values, *more[name]] for name, values in bank().items()})
    dataset = load("files", options=two | {"join": "inner", "positive": "bad"})
    assert dataset.labels().unaligned.tolist() == [1, 0, 0]


def test_a_missing_label_in_a_file_of_test_rows_is_found_there(two, tmp_path):
    more = {"id": list("zyxwv"), "balance": [1] * 5, "label": ["good", "bad", "", "good", "bad"]}
    test_files = {
        "a": write_csv(
            tmp_path / "ta.csv", {name: values[:5] for name, values in columns().items()} | {"id": more["id"]}
        ),
        "b": write_csv(tmp_path / "tb.csv", more),
    }
    with pytest.raises(
        DataError,
        match=r"tb\.csv: column 'label' has 1 missing label in the 5 rows of shared IDs, the first in row 3",
    ):
        load("files", options=two | {"test_files": test_files})


def test_a_column_of_lists_is_refused_with_a_cure(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": list("abcdefghij"), "tags": [["a"], ["b"]] * 5}), path)
    with pytest.raises(DataError, match=r"column 'tags' is of type list.* list it in ignore"):
        load("files", options={"files": {"a": str(path)}, "label": ""})


@pytest.mark.parametrize("column", ["id", "town", "label"])
def test_texts_of_the_view_type_are_texts(tmp_path, column):
    table = {"id": [f"p{row}" for row in range(40)], "town": ["Ulm", "Bonn"] * 20, "label": ["yes", "no"] * 20}
    found = []
    for kind in (pa.string(), pa.string_view()):
        pq.write_table(pa.table(table | {column: pa.array(table[column], kind)}), tmp_path / "a.parquet")
        dataset = load("files", options={"files": {"a": str(tmp_path / "a.parquet")}})
        found.append((dataset.ids("train"), raw_rows(dataset, "a", "train"), dataset.labels().train.tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize("values", [[[1]] * ROWS, [{"a": 1}] * ROWS, [b"\xff"] * ROWS])
@pytest.mark.parametrize("options", [{"categorical": "v", "label": ""}, {"label": "v"}])
def test_values_of_other_types_are_refused_as_categories_and_as_labels(tmp_path, values, options):
    pq.write_table(pa.table({"id": columns()["id"], "x": range(ROWS), "v": values}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: column 'v' is of type .*; make it numbers or texts"):
        load("files", options={"files": {"a": str(tmp_path / "a.parquet")}} | options)


def test_a_number_that_stands_for_a_missing_one_and_is_too_large_is_refused_by_its_row(two, tmp_path):
    changed(tmp_path, income=[*columns()["income"][:7], "1.797e308", *columns()["income"][8:]])
    with pytest.raises(DataError, match=r"a\.csv: .* row 8 below the header holds 1\.797e\+308; numbers up to 1e\+150"):
        load("files", options=two)


def test_a_prepared_folder_is_opened_with_any_of_its_options(two, tmp_path):
    prepared = prepare("files", out=tmp_path / "out", options=two | {"test_fraction": 0.3})
    for same in ({"test_fraction": 0.3}, {"positive": "bad", "missing": "error"}, {"files.a": two["files"]["a"]}, two):
        assert load("files", path=tmp_path / "out", options=same).alignment == prepared.alignment
    for other, text in (({"test_fraction": 0.2}, "test_fraction = 0.3, asked for is 0.2"), ({"files.c": "c"}, "files")):
        with pytest.raises(DataError, match=f"was prepared with {text}"):
            load("files", path=tmp_path / "out", options=other)
