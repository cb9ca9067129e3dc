"""Rows to be scored: found by their IDs; new ones are encoded as the training rows were."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_vfl.data.sources.catalog import prepare
from flower_vfl.data.store import layout
from flower_vfl.data.store.dataset import open_dataset
from flower_vfl.data.store.scoring import ScoreRows, has_whole_ids, new_rows, read_requested_ids, rows_of
from flower_vfl.errors import DataError
from tests.toys import toy_data


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Write and prepare two parties' files with numbers, a skewed column, categories and missing values."""
    root = tmp_path_factory.mktemp("trained")
    rng = np.random.default_rng(0)
    ids = [f"p{number:03}" for number in range(200)]
    shop = {"id": ids, "spent": np.exp(3 * rng.normal(size=200)), "city": rng.choice(["Bonn", "Kiel", ""], 200)}
    bank = {"id": ids[::-1], "debt": rng.normal(size=200), "label": rng.integers(0, 2, 200)}
    pa_csv.write_csv(pa.table(shop), root / "shop.csv")
    pq.write_table(pa.table(bank), root / "bank.parquet")
    options = {"files": {"shop": "shop.csv", "bank": "bank.parquet"}}
    return root, prepare("files", source=root, out=root / "prepared", options=options)


def everything(rows, party):
    features = rows.features(party)
    return features.source.gather(np.arange(len(features.source)))


def all_equal(first, second):
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("whole", [True, False], ids=["one file", "a folder"])
def test_training_rows_that_are_read_again_are_encoded_as_they_were_prepared(trained, tmp_path, whole):
    root, dataset = trained
    if whole:
        shop, bank = pa_csv.read_csv(root / "shop.csv"), pq.read_table(root / "bank.parquet")
        pa_csv.write_csv(shop.join(bank, "id"), tmp_path / "both.csv")
    again, known = new_rows(tmp_path / "both.csv" if whole else root, dataset), rows_of(dataset)
    assert again.count == known.count == 200
    order = known.find(again.ids(np.arange(200)))
    for party in dataset.parties:
        first = again.features(party).source.gather(np.arange(200))
        assert all_equal(first, known.features(party).source.gather(order))
        assert again.features(party).encoding == known.features(party).encoding
        assert again.features(party).spec == known.features(party).spec


def test_rows_of_files_are_in_the_order_of_their_ids_whatever_the_order_of_the_file(trained, tmp_path):
    _, dataset = trained
    table = pa.table({"id": ["b", "c", "a"], "spent": [2.0, 3.0, 1.0], "city": ["Kiel", "Bonn", "Bonn"]})
    pa_csv.write_csv(table, tmp_path / "one.csv")
    pa_csv.write_csv(table.take([2, 0, 1]), tmp_path / "two.csv")
    one, two = (new_rows(tmp_path / name, dataset) for name in ("one.csv", "two.csv"))
    assert one.ids(np.arange(3)).to_pylist() == ["a", "b", "c"]
    assert one.digest == two.digest
    assert all_equal(everything(one, "shop"), everything(two, "shop"))
    numeric, categorical = everything(one, "shop")
    assert numeric[:, 0].tolist() == sorted(numeric[:, 0].tolist())
    assert categorical[0] == categorical[2] != categorical[1]


@pytest.mark.parametrize("join", ["strict", "inner"])
def test_new_rows_are_joined_as_the_training_rows_were(trained, tmp_path, join):
    root, _ = trained
    options = {"files": {"shop": "shop.csv", "bank": "bank.parquet"}, "join": join}
    dataset = prepare("files", source=root, out=tmp_path / "prepared", options=options)
    pa_csv.write_csv(
        pa.table({"id": ["c", "a", "d"], "spent": [3.0, 1.0, 4.0], "city": ["Bonn"] * 3}), tmp_path / "shop.csv"
    )
    pa_csv.write_csv(pa.table({"id": ["a", "b", "c"], "debt": [1.0, 2.0, 3.0]}), tmp_path / "bank.csv")
    if join == "strict":
        with pytest.raises(DataError, match="1 of 3 IDs in"):
            new_rows(tmp_path, dataset)
        return
    rows = new_rows(tmp_path, dataset)
    assert (rows.count, rows.left_out) == (2, 2)
    assert rows.ids(np.arange(2)).to_pylist() == ["a", "c"]
    (numeric,) = everything(rows, "bank")
    assert numeric[0, 0] < numeric[1, 0]


def test_an_unseen_value_goes_to_its_bucket(trained, tmp_path):
    _, dataset = trained
    pa_csv.write_csv(pa.table({"id": ["a"], "spent": [1.0], "city": ["Atlantis"]}), tmp_path / "new.csv")
    assert everything(new_rows(tmp_path / "new.csv", dataset), "shop")[1].tolist() == [[0]]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["Bonn", "Kiel", ""], None),
        (["Bonn", "Atlantis", "Kiel"], "column 'city': 1 of 3 rows have a value that training never saw, such as "
         "'Atlantis'; they count as one new category"),
        (["Köln", "Kiel", "Zürich"], "column 'city': 2 of 3 rows have a value that training never saw, such as 'Köln'"),
    ],
)  # fmt: skip
def test_values_that_training_never_saw_are_counted_in_a_warning_a_column(trained, tmp_path, caplog, values, words):
    table = pa.table({"id": ["a", "b", "c"], "spent": [1.0, 2.0, 3.0], "city": values})
    pa_csv.write_csv(table, tmp_path / "new.csv")
    everything(new_rows(tmp_path / "new.csv", trained[1]), "shop")
    assert [record.levelname for record in caplog.records] == ["WARNING"] * (words is not None)
    assert words is None or words in caplog.text


def test_values_that_were_too_rare_in_training_are_not_called_unseen(trained, tmp_path, caplog):
    options = {"files": {"shop": "shop.csv", "bank": "bank.parquet"}, "min_count": 1000}
    dataset = prepare("files", source=trained[0], out=tmp_path / "prepared", options=options)
    pa_csv.write_csv(pa.table({"id": ["a"], "spent": [1.0], "city": [""]}), tmp_path / "new.csv")
    everything(new_rows(tmp_path / "new.csv", dataset), "shop")
    assert "1 of 1 rows have a value that training saw fewer than 1000 times, such as an empty one" in caplog.text


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".txt", ".parquet"])
def test_a_party_s_file_in_a_folder_may_have_every_ending_that_can_be_prepared(trained, tmp_path, ending):
    table = pa.table({"id": ["x"], "spent": [1.0], "city": ["Bonn"]})
    if ending == ".parquet":
        pq.write_table(table, tmp_path / "shop.parquet")
    else:
        options = pa_csv.WriteOptions(delimiter="\t" if ending == ".tsv" else ",")
        pa_csv.write_csv(table, tmp_path / f"shop{ending}", options)
    assert new_rows(tmp_path, trained[1]).count == 1


def test_new_rows_need_no_label(trained, tmp_path):
    _, dataset = trained
    pa_csv.write_csv(pa.table({"id": ["a"], "debt": [1.0]}), tmp_path / "new.csv")
    assert len(everything(new_rows(tmp_path / "new.csv", dataset), "bank")[0]) == 1


@pytest.mark.parametrize(
    ("files", "party", "words"),
    [
        ({"new.csv": "id,spent\na,1\n"}, "shop", "has no column 'city'"),
        ({"new.csv": "spent,city\n1,Bonn\n"}, "shop", "has no column 'id'"),
        ({"new.csv": "id,spent,city\na,much,Bonn\n"}, "shop", "holds 'much', a finite number .* is needed"),
        (
            {"new.csv": "id,spent,city\nc,1,Bonn\na,1,Kiel\nb,oops,Bonn\n"},
            "shop",
            "row 3 .* holds 'oops'",
        ),
        (
            {"new.csv": "id,spent,city\na,1,Bonn\na,2,Kiel\n"},
            "shop",
            "in rows 1, 2 below the header; keep one of each$",
        ),
        ({"new.csv": "id,spent,city\n"}, "shop", "has no rows"),
        ({"new.csv": "id;spent;city\n"}, "shop", "has no rows"),
        ({"new.csv": "id,city\né,x\n"}, "shop", "line 2 is no text in UTF-8; convert the file to UTF-8$"),
        ({"shop.csv": "id,spent,city\na,1,Bonn\n", "bank.csv": "id,debt\nb,1\n"}, "shop", "1 of 1 IDs"),
        ({"bank.csv": "id,debt\nb,1\n"}, "shop", "no file of party 'shop', such as shop.csv; it holds those of bank"),
        ({"clinic.csv": "id\nb\n"}, "shop", r"neither a CSV or Parquet file, .* \(shop.csv, bank.csv\)"),
    ],
)
def test_new_rows_that_do_not_fit_are_refused(trained, tmp_path, files, party, words):
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="cp1252")
    path = tmp_path / "new.csv" if "new.csv" in files else tmp_path
    with pytest.raises(DataError, match=words):
        new_rows(path, trained[1]).features(party)


def test_one_file_for_all_parties_has_the_delimiter_that_their_files_had(tmp_path):
    (tmp_path / "shop.csv").write_text("id;spent\n" + "".join(f"p{row:03};{row},5\n" for row in range(80)))
    (tmp_path / "bank.csv").write_text(
        "id;debt;label\n" + "".join(f"p{row:03};{row % 7};{row % 2}\n" for row in range(80))
    )
    options = {"files": {"shop": "shop.csv", "bank": "bank.csv"}, "delimiter": {"shop": ";", "bank": ";"}}
    dataset = prepare("files", source=tmp_path, out=tmp_path / "prepared", options=options)
    (tmp_path / "new.csv").write_text("id;debt;spent\nq1;3;2,5\n")
    assert new_rows(tmp_path / "new.csv", dataset).ids(np.array([0])).to_pylist() == ["q1"]


@pytest.mark.parametrize(
    ("delimiter", "needed"),
    [({"shop": ";", "bank": ","}, ""), ({"shop": ";"}, ""), ({"shop": "|", "bank": "|"}, "vertical bars")],
)
def test_a_file_with_another_delimiter_is_read_unless_one_was_given_for_all(tmp_path, delimiter, needed):
    shop, bank = delimiter["shop"], delimiter.get("bank", ",")
    rows = [(f"p{row:03}", str(row), str(row % 7), str(row % 2)) for row in range(80)]
    (tmp_path / "shop.csv").write_text("\n".join(shop.join(row[:2]) for row in [("id", "spent"), *rows]))
    (tmp_path / "bank.csv").write_text(
        "\n".join(bank.join((row[0], *row[2:])) for row in [("id", "", "debt", "label"), *rows])
    )
    options = {"files": {"shop": "shop.csv", "bank": "bank.csv"}, "delimiter": delimiter}
    dataset = prepare("files", source=tmp_path, out=tmp_path / "prepared", options=options)
    (tmp_path / "new.csv").write_text("id;debt;spent\nq1;3;2\n")
    if not needed:
        assert new_rows(tmp_path / "new.csv", dataset).count == 1
        return
    with pytest.raises(DataError, match=f"separated by semicolons; {needed} are needed: save it with {needed}$"):
        new_rows(tmp_path / "new.csv", dataset)


def test_requested_ids_may_have_any_delimiter(tmp_path):
    (tmp_path / "ids.csv").write_text("id;town\nq1;Ulm\n")
    assert read_requested_ids(tmp_path / "ids.csv", "id").to_pylist() == ["q1"]


def test_data_without_encodings_takes_no_files(tmp_path):
    (tmp_path / "new.csv").write_text("id,x0\na,1\n")
    with pytest.raises(DataError, match="nothing says how its columns were encoded"):
        new_rows(tmp_path / "new.csv", toy_data())
    toy = prepare("toy-gap", out=tmp_path / "toy", options={"rows": 40, "test_rows": 20})
    with pytest.raises(DataError, match="does not say how the columns of party 'a' were encoded"):
        new_rows(tmp_path / "new.csv", toy).features("a")


def test_a_prepared_folder_is_scored_without_encoding(trained):
    root, dataset = trained
    rows = new_rows(root / "prepared", dataset)
    assert (rows.count, rows.digest) == (200, dataset.alignment.digest)
    assert rows.chosen == range(dataset.alignment.rows, 200)


def test_positions_and_ids_belong_together_in_both_parts(trained):
    _, dataset = trained
    rows = rows_of(dataset)
    ids = [*dataset.ids("train"), *dataset.ids("test")]
    assert rows.ids(np.array([0, 199, 3])).to_pylist() == [ids[0], ids[199], ids[3]]
    assert rows.find(pa.array([ids[150], ids[2]])).tolist() == [150, 2]
    table = dataset.party("shop")
    for position in (0, dataset.alignment.rows - 1, dataset.alignment.rows, 199):
        part, row = (table.train, position) if position < dataset.alignment.rows else (table.test, position)
        row -= 0 if position < dataset.alignment.rows else dataset.alignment.rows
        assert all_equal(rows.features("shop").source.gather(np.array([position])), part.gather(np.array([row])))


def test_ids_that_are_not_those_of_the_rows_are_refused(trained, tmp_path):
    root, _ = trained
    shutil.copytree(root / "prepared", tmp_path / "copy")
    dataset = open_dataset(tmp_path / "copy")
    ids = dataset.ids("test")
    layout.write_ids(tmp_path / "copy" / "ids" / "test.parquet", ids[::-1])
    for rows in (rows_of(dataset), new_rows(tmp_path / "copy", dataset)):
        for read in (lambda rows=rows: rows.ids(np.arange(3)), lambda rows=rows: rows.find(pa.array(ids[:3]))):
            with pytest.raises(DataError, match="are not those of the rows, or not in their order"):
                read()


@pytest.mark.parametrize("ids", [None, [f"p{number}" for number in range(100)]], ids=["numbers", "training IDs"])
def test_test_rows_without_ids_have_the_numbers_of_their_table_and_training_rows_cannot_be_asked_for(ids):
    data = replace(toy_data(rows=100, test_rows=30), ids=ids)
    rows = rows_of(data)
    (position,) = rows.find(pa.array(["5"]))
    assert all_equal(rows.features("a").source.gather(np.array([position])), data.party("a").test.gather(np.array([5])))
    with pytest.raises(DataError, match="numbers, 0 to 29, and its training rows cannot be asked for"):
        rows.find(pa.array(["30", "p3"]))


@settings(max_examples=50)
@given(st.lists(st.text("abc", min_size=1, max_size=3), unique=True, min_size=1, max_size=30), st.data())
def test_ids_are_found_as_a_dictionary_finds_them(ids, data):
    cut = data.draw(st.integers(0, len(ids)))
    requested = data.draw(st.lists(st.sampled_from(ids), unique=True, min_size=1))
    column = pa.chunked_array([ids[:cut], ids[cut:]], pa.string())
    rows = ScoreRows(len(ids), "", range(len(ids)), lambda party: None, lambda: column)
    place = {value: position for position, value in enumerate(ids)}
    assert rows.find(pa.array(requested)).tolist() == [place[value] for value in requested]
    assert rows.ids(rows.find(pa.array(requested))).to_pylist() == requested
    with pytest.raises(DataError, match=f"1 of {len(requested) + 1} IDs are not in the data: 'zz'"):
        rows.find(pa.array([*requested, "zz"]))


@pytest.mark.parametrize("name", ["ids.csv", "ids.tsv", "ids.parquet", "ids.txt", "ids"])
def test_a_list_of_ids_is_read_in_its_order(tmp_path, name):
    requested = ["p2", "p1", "ü3"]
    table = pa.table({"person": requested, "more": [1, 2, 3]})
    if name.endswith("parquet"):
        pq.write_table(table, tmp_path / name)
    elif "sv" in name:
        text = "\t" if name.endswith("tsv") else ","
        lines = [f"person{text}more", *(f"{value}{text}1" for value in requested)]
        (tmp_path / name).write_text("\n".join(lines), encoding="utf8")
    else:
        (tmp_path / name).write_text("\ufeff" + "\r\n".join(requested) + "\n\n", encoding="utf8")
    assert read_requested_ids(tmp_path / name, "person").to_pylist() == requested


def test_whole_numbers_are_ids_too(tmp_path):
    pq.write_table(pa.table({"id": [7, 3]}), tmp_path / "ids.parquet")
    assert read_requested_ids(tmp_path / "ids.parquet", "id").to_pylist() == ["7", "3"]


@pytest.mark.parametrize("name", ["ids.csv", "ids.txt"])
def test_requested_ids_are_whole_numbers_where_those_of_training_are(tmp_path, name):
    (tmp_path / "shop.csv").write_text("id,x\n" + "".join(f"{number:04},{number}\n" for number in range(40)))
    bank = "".join(f"{number},{number / 2},{number % 2}\n" for number in range(40))
    (tmp_path / "bank.csv").write_text(f"id,y,label\n{bank}")
    files = {party: str(tmp_path / f"{party}.csv") for party in ("shop", "bank")}
    prepare("files", out=tmp_path / "data", options={"files": files, "dtype": {"id": "integer"}})
    dataset = open_dataset(tmp_path / "data")
    (tmp_path / name).write_text("id\n007\n12\n" if name.endswith("csv") else "007\n12\n")
    asked = read_requested_ids(tmp_path / name, "id", whole=has_whole_ids(dataset))
    rows = rows_of(dataset)
    assert rows.ids(rows.find(asked)).to_pylist() == ["7", "12"]


def test_a_list_without_the_column_names_those_that_there_are(tmp_path):
    (tmp_path / "ids.csv").write_text("pid\n1\n")
    with pytest.raises(DataError, match="has no column 'id'; did you mean 'pid'"):
        read_requested_ids(tmp_path / "ids.csv", "id")


def test_a_list_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "ids").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="cannot be read"):
        read_requested_ids(tmp_path / "ids", "id")
    with pytest.raises(DataError, match="there is no file"):
        read_requested_ids(tmp_path / "nowhere", "id")


def test_two_files_of_one_party_are_refused(trained, tmp_path):
    root, dataset = trained
    shutil.copy(root / "shop.csv", tmp_path)
    shutil.copy(root / "bank.parquet", tmp_path)
    new_rows(tmp_path, dataset)
    pa_csv.write_csv(pq.read_table(root / "bank.parquet"), tmp_path / "bank.csv")
    with pytest.raises(DataError, match=r"has bank.csv and bank.parquet, all of 'bank': leave one there"):
        new_rows(tmp_path, dataset)


DAYS = np.datetime64("2020-01-01") + np.arange(200) % 90
CODES = 4006381333931 + np.arange(200) % 5
MINUTES = pa.array(np.arange(200) % 120 * 60_000_000, pa.time64("us"))
IN_OTHER_TYPES = {
    "dates as texts": ("born", pa.array(DAYS), pa.array(DAYS).cast(pa.string())),
    "times as texts": ("seen", MINUTES, MINUTES.cast(pa.string())),
    "codes as floats": ("product_code", pa.array(CODES), pa.array(CODES.astype(float))),
    "codes that were floats": ("product_code", pa.array(CODES.astype(float)), pa.array(CODES)),
    "codes that were texts": ("product_code", pa.array(CODES).cast(pa.string()), pa.array(CODES.astype(float))),
    "booleans as texts": ("old", pa.array(CODES % 2 == 0), pa.array([f"{code % 2 == 0:.1f}" for code in CODES])),
}


@pytest.mark.parametrize(("column", "first", "second"), IN_OTHER_TYPES.values(), ids=IN_OTHER_TYPES)
def test_the_same_values_in_another_type_are_the_same(tmp_path, column, first, second):
    """Programs write whole numbers as floats as soon as a row is empty, and CSV has texts alone."""
    table = pa.table({"id": [f"p{number}" for number in range(200)], column: first})
    pq.write_table(table, tmp_path / "shop.parquet")
    options = {"files": {"shop": str(tmp_path / "shop.parquet")}, "label": "", "missing": "mean"}
    dataset = prepare("files", out=tmp_path / "prepared", options=options)
    pq.write_table(table.set_column(1, column, second), tmp_path / "new.parquet")
    files = ("shop.parquet", "new.parquet")
    read = [everything(new_rows(tmp_path / name, dataset), "shop") for name in files]
    assert all_equal(*read)
    assert len(np.unique(read[0][-1], axis=0)) > 1
    pq.write_table(table.set_column(1, column, pa.nulls(200)), tmp_path / "new.parquet")
    empty = everything(new_rows(tmp_path / "new.parquet", dataset), "shop")
    assert all(len(np.unique(part, axis=0)) <= 1 for part in empty)


def test_a_text_that_is_no_date_is_refused_where_training_rows_had_dates(tmp_path):
    table = pa.table({"id": [f"p{number}" for number in range(200)], "born": pa.array(DAYS)})
    pq.write_table(table, tmp_path / "shop.parquet")
    options = {"files": {"shop": str(tmp_path / "shop.parquet")}, "label": ""}
    dataset = prepare("files", out=tmp_path / "prepared", options=options)
    pa_csv.write_csv(table.set_column(1, "born", pa.array(["yesterday"] * 200)), tmp_path / "shop.csv")
    with pytest.raises(DataError, match="row 1 below the header holds 'yesterday', a date or time is needed"):
        everything(new_rows(tmp_path / "shop.csv", dataset), "shop")
