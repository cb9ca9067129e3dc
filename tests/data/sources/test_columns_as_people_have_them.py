"""Tables with the notations of practice: types of columns, and new rows are read as training rows."""

import datetime
import math
import re
import tomllib
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flower_vfl.data.encoding.columns import columns_of
from flower_vfl.data.sources.catalog import load, prepare
from flower_vfl.data.store.scoring import new_rows
from flower_vfl.errors import ConfigError, DataError
from tests.cases import parametrize

ROWS = 120
IDS = [f"p{row:03d}" for row in range(ROWS)]


def write(path, columns, delimiter=";", encoding="utf8"):
    lines = [delimiter.join(columns), *(delimiter.join(row) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(lines) + "\n", encoding=encoding)
    return str(path)


def cycle(*values):
    return [values[row % len(values)] for row in range(ROWS)]


def table(**columns):
    return {"id": IDS, **columns, "label": cycle("0", "1", "1", "0", "1")}


@pytest.fixture
def prepared(tmp_path):
    """Return a function that prepares a table of one party with given columns."""

    def prepare_table(out="out", **given):
        options = given.pop("options", {})
        path = write(tmp_path / "bank.csv", table(**given))
        settings = {"files": {"bank": path}, "delimiter": ";", "missing": "mean", **options}
        return prepare("files", out=tmp_path / out, options=settings)

    return prepare_table


def read_column(dataset, name):
    return next(one for one in dataset.encoding("bank").reader.columns if one.name == name)


def encoded(dataset, name):
    """Return the encoded values of a numeric column in the training rows, by ID."""
    source = dataset.party("bank")
    place = source.columns.index(name)
    values = source.train.gather(np.arange(len(source.train)))[0][:, place]
    return dict(zip(dataset.ids("train"), values.tolist(), strict=True))


NUMBERS = [
    (cycle("1.234,50", "7,25", "12.000,00", "-3,5"), [1234.5, 7.25, 12000, -3.5]),
    (cycle("1,234.50", "7.25", "12,000.00", "(3.5)"), [1234.5, 7.25, 12000, -3.5]),
    (cycle("1 234,5", "7,25", "12\u00a0000", "3,5-"), [1234.5, 7.25, 12000, -3.5]),
    (cycle("1'234.5", "7.25", "12\u2019000", "\u22123.5"), [1234.5, 7.25, 12000, -3.5]),
    (cycle("€ 1.234,50", "€ 7,25", "€ 12.000", "-€ 3,5"), [1234.5, 7.25, 12000, -3.5]),
    (cycle("12 %", "7.25%", "0", "-3.5 %"), [12, 7.25, 0, -3.5]),
    (cycle("1,234", "7,000", "12,000", "999"), [1234, 7000, 12000, 999]),
    (cycle("71.0 kg", "80kg", "-3.5 kg", "0"), [71, 80, -3.5, 0]),
    (cycle("1.234,5 km/h", "7 km/h", "12,5 km/h", "9 km/h"), [1234.5, 7, 12.5, 9]),
    (cycle("21 °C", "-4 °C", "7.5°C", "0 °C"), [21, -4, 7.5, 0]),
]


@pytest.mark.parametrize(("given", "values"), NUMBERS)
def test_numbers_are_read_in_the_notation_of_their_column(prepared, given, values):
    dataset = prepared(x=given, other=cycle("a", "b", "c"))
    assert read_column(dataset, "x").kind == "number"
    expected = {row: float(values[number % 4]) for number, row in enumerate(IDS)}
    found = encoded(dataset, "x")
    column = dataset.encoding("bank").numeric[0]
    apply = column.apply(np.array([expected[row] for row in found]))[:, 0]
    assert list(found.values()) == pytest.approx(apply.tolist())


def test_an_unambiguous_column_settles_the_decimal_sign_of_the_others(prepared):
    unambiguous = prepared(x=cycle("1,234", "7,000"), y=cycle("0,5", "12,25"))
    assert read_column(unambiguous, "x").style.decimal == ","
    assert read_column(prepared("two", x=cycle("1,234", "7,000"), y=cycle("0.5", "1.25")), "x").style.thousands == ","
    named = prepared("three", x=cycle("1,234", "7,000"), options={"decimal": ","})
    assert read_column(named, "x").style.decimal == ","


@parametrize("word", ["n/a", "?", "-", "NULL", "None", "", "#N/A", "unknown", "-999", "-999.0", "-999,00"], quick=2)
def test_texts_for_a_missing_value_are_missing_in_numbers_dates_and_categories(prepared, word):
    dataset = prepared(
        x=cycle("1", "2", "3", word),
        town=cycle("Ulm", "Bonn", "Kiel", word),
        born=cycle("1.2.1990", "13.2.1991", "5.7.2001", word),
        options={"missing_values": ["unknown", "-999"]},
    )
    missing = {column.name: column.missing for column in columns_of(dataset)}
    share = sum(int(row[1:]) % 4 == 3 for row in dataset.ids("train")) / dataset.alignment.rows
    for name in ("x", "town", "born: age in days"):
        assert missing[name] == pytest.approx(share)


DATES = [
    (cycle("2001-05-07", "2010-12-31", "1999-01-15"), "%Y-%m-%d"),
    (cycle("07.05.2001", "31.12.2010", "15.01.1999"), "%d.%m.%Y"),
    (cycle("07/05/2001", "31/12/2010", "15/01/1999"), "%d/%m/%Y"),
    (cycle("05/07/2001", "12/31/2010", "01/15/1999"), "%m/%d/%Y"),
    (cycle("20010507", "20101231", "19990115"), "%Y%m%d"),
    (cycle("May 7, 2001", "Dec 31, 2010", "January 15, 1999"), "%b %d, %Y"),
    (cycle("2001-05-07T00:00:00Z", "2010-12-31 00:00", "1999-01-15"), "%Y-%m-%d"),
]


@pytest.mark.parametrize(("given", "text"), DATES)
def test_dates_become_their_age_and_their_parts(prepared, given, text):
    dataset = prepared(born=given)
    assert (read_column(dataset, "born").kind, read_column(dataset, "born").date) == ("date", text)
    assert "born: month" in dataset.party("bank").columns
    column = dataset.encoding("bank").numeric[0]
    latest = datetime.date(2010, 12, 31)
    ages = [
        (latest - date).days
        for date in (datetime.date(2001, 5, 7), datetime.date(2010, 12, 31), datetime.date(1999, 1, 15))
    ]
    found = encoded(dataset, "born: age in days")
    expected = column.apply(np.array([float(ages[int(row[1:]) % 3]) for row in found]))[:, 0]
    assert list(found.values()) == pytest.approx(expected.tolist())


def test_times_of_day_become_minutes_and_an_hour(prepared):
    assert prepared(at=cycle("8:30", "17:05", "8:45")).party("bank").columns == (
        "at: minutes",
        "at: minutes is missing",
        "at: hour",
    )


def test_dates_with_ambiguous_day_and_month_are_refused_until_their_format_is_named(prepared):
    given = {"born": cycle("03/04/2001", "05/06/2010", "07/08/1999")}
    with pytest.raises(DataError, match=r'"date:%d/%m/%Y" or dtype\.born = "date:%m/%d/%Y" below \[data\.options\]'):
        prepared(**given)
    dataset = prepared("named", **given, options={"dtype": {"born": "date:%m/%d/%Y"}})
    assert read_column(dataset, "born").date == "%m/%d/%Y"
    first = prepared("firsts", born=cycle("01/04/2001", "01/06/2010", "01/08/1999"))
    assert read_column(first, "born").date == "%d/%m/%Y"


def test_columns_of_a_date_type_are_dates(tmp_path):
    born = [datetime.date(1990 + row % 20, 1 + row % 12, 1 + row % 28) for row in range(ROWS)]
    seen = [datetime.datetime(2020, 1, 1 + row % 28, row % 24) for row in range(ROWS)]
    columns = {"id": IDS, "born": born, "seen": seen, "label": cycle(0, 1, 1)}
    pq.write_table(pa.table(columns), tmp_path / "bank.parquet")
    dataset = load("files", options={"files": {"bank": str(tmp_path / "bank.parquet")}})
    assert {"born: age in days", "born: month", "seen: hour"} <= set(dataset.party("bank").columns)
    assert "seen: month" not in dataset.party("bank").columns


@parametrize(
    ("given", "kind", "why"),
    [
        (cycle("Yes", "no", "YES"), "boolean", "yes and no in words"),
        (cycle("ja", "NEIN", "?"), "boolean", "yes and no in words"),
        (cycle("x"), "ignore", "the same value in every training row"),
        (cycle("?"), "ignore", "empty in every training row"),
        ([f"ref-{row}x" for row in range(ROWS)], "ignore", "occur in one training row only"),
        ([f"a customer who called {row} times" for row in range(ROWS)], "ignore", "free text, 6 words on average"),
        (cycle("01067", "80331", "10115"), "category", "leading zeros"),
        (cycle("$5", "€7", "$9"), "category", "different signs: $, €"),
        (cycle("18_25", "26_35"), "category", "texts"),
        (cycle("7A", "7B", "12A", "12C"), "category", "texts"),
        (cycle("007 X", "12 X", "3 X"), "category", "texts"),
        (cycle("1A", "12A", "3A"), "category", "texts"),
        (cycle("1.5k", "12k", "3k"), "number", "with k"),
        ([f"{row % 40}.5 {'kg' if row % 2 else 'g'}" for row in range(ROWS)], "category", "different units: g, kg"),
        (
            [f"2024-02-{row % 28 + 1:02d}" if row % 2 else f"{row % 28 + 1:02d}/02/2024" for row in range(ROWS)],
            "category",
            "dates in several formats, such as ",
        ),
        (
            [f"{row},50" if row % 2 else f"-1,{row + 100}.25" for row in range(ROWS)],
            "ignore",
            "numbers in different notations, such as ",
        ),
        ([f"{'$€'[row % 2]}{row}.5" for row in range(ROWS)], "ignore", "numbers with different signs: $, €, such as "),
        ([f"0441 2345{row}" for row in range(ROWS)], "ignore", "occur in one training row only"),
        (
            ["k.A." if row % 12 == 0 else str(row % 40 / 8) for row in range(ROWS)],
            "category",
            "name them: missing_values",
        ),
        ([f"{'?' if row % 3 else 'k.A.'}" if row % 4 == 0 else f"{row},5" for row in range(ROWS)], "ignore", "'k.A.'"),
        (cycle("small", "3.5", "large", "medium"), "category", "texts"),
    ],
    quick=3,
)
def test_each_column_shows_its_type_and_the_reason(prepared, given, kind, why):
    dataset = prepared(x=given, other=cycle("1", "2"))
    assert read_column(dataset, "x").kind == kind
    shown = next(column for column in columns_of(dataset) if column.name == "x")
    assert why in shown.why
    assert shown.change[0] == "x"
    assert (shown.kind == "left out") == (kind == "ignore")


@pytest.mark.parametrize("name", ["advert_id", "advertID", "area code", "Zip", "PLZ"])
@pytest.mark.parametrize("values", [cycle("90", "101", "7"), cycle("7.0", "12", "-1", "?")])
def test_whole_numbers_of_a_column_that_is_named_as_a_code_are_categories(prepared, name, values):
    column = read_column(prepared(**{name: values}, other=cycle("1", "2")), name)
    assert (column.kind, column.why[-7:]) == ("category", ": codes")


@pytest.mark.parametrize(("name", "value"), [("amount_paid", "3"), ("code", "3.5"), ("code_length", "3"), ("7", "3")])
def test_numbers_that_are_amounts_stay_numbers(prepared, name, value):
    assert read_column(prepared(**{name: cycle(value, "4", "5")}), name).kind == "number"


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (cycle(7, 12), "category"),
        (cycle(2**60 + 1, 2**60 + 2), "category"),
        (cycle(7.0, None, 12.0), "category"),
        (cycle(7.5, 12.0), "number"),
    ],
)
def test_codes_are_known_by_name_in_columns_of_numeric_types_too(tmp_path, values, kind):
    pq.write_table(pa.table({"id": IDS, "ad_id": values, "label": cycle(0, 1, 1)}), tmp_path / "bank.parquet")
    options = {"files": {"bank": str(tmp_path / "bank.parquet")}, "missing": "mean"}
    assert read_column(load("files", options=options), "ad_id").kind == kind


def test_an_infinite_code_is_refused(tmp_path):
    columns = {"id": IDS, "ad_id": cycle(7.0, 12.0, math.inf), "label": cycle(0, 1, 1)}
    pq.write_table(pa.table(columns), tmp_path / "bank.parquet")
    with pytest.raises(DataError, match=r"column 'ad_id', row \d+ holds inf, a finite number"):
        load("files", options={"files": {"bank": str(tmp_path / "bank.parquet")}})


def test_a_code_that_differs_in_almost_all_rows_is_left_out(prepared):
    column = read_column(prepared(visit_id=[str(row) for row in range(ROWS)], other=cycle("1", "2")), "visit_id")
    assert (column.kind, "occur in one training row only" in column.why) == ("ignore", True)


def test_a_column_of_mostly_numbers_that_is_read_as_a_category_is_warned_of(prepared, caplog):
    given = ["k.A." if row % 12 == 0 else str(row % 40 / 8) for row in range(ROWS)]
    prepared(x=given, y=cycle("small", "3.5", "large", "medium"))
    (warning,) = (one.getMessage() for one in caplog.records if "category" in one.getMessage())
    assert re.search(
        r"bank\.csv: column 'x' is read as a category: 9\d% of its values are numbers, others such as 'k\.A\.' are "
        r"not; if these stand for a missing value, name them: missing_values = \[\"k\.A\.\"\]$",
        warning,
    )
    dataset = prepared("again", x=given, y=cycle("1", "2"), options={"missing_values": ["k.A."]})
    assert read_column(dataset, "x").kind == "number"


def test_numbers_that_a_named_decimal_mark_does_not_read_are_left_out_for_that_reason(prepared):
    points = [f"{row}.5" for row in range(ROWS)]
    dataset = prepared(x=points, other=cycle("1", "2"), options={"decimal": ","})
    shown = next(column for column in columns_of(dataset) if column.name == "x")
    assert re.fullmatch(r"numbers such as '\d+\.5', which decimal = \",\" does not read: leave it out", shown.why)


def test_a_column_that_would_be_left_out_stays_where_its_type_is_named(prepared):
    refs = [f"ref-{row}x" for row in range(ROWS)]
    dataset = prepared(x=refs, y=cycle("7"), options={"dtype": {"x": "category", "y": "number"}})
    assert {"x", "y"} <= set(dataset.party("bank").columns)
    with pytest.raises(DataError, match=r"no column is left for party 'bank': 'y' \(the same value.*dtype\.y = "):
        prepared("none", y=cycle("7"))
    left = r"'x' \(empty in every training row\)"
    with pytest.raises(DataError, match=rf"no column is left for party 'bank': {left}; give the party a column with"):
        prepared("empty", x=cycle(""))
    with pytest.raises(DataError, match=rf"{left}, 'y' \(the same value.*name what to keep, as in .*dtype\.y = "):
        prepared("both", x=cycle(""), y=cycle("7"))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"dtype": {"x": "integers"}}, "dtype of column 'x' is one of number, category"),
        ({"dtype": {"x": "integer"}}, "dtype of column 'x' is one of number, category"),
        ({"dtype": {"x": "date:%q"}}, "'%q' is no format of dates"),
        ({"dtype": {"y": "number"}}, "option dtype of files: no table has a column 'y'"),
        ({"dtype": {"x": "number"}, "ignore": "x"}, "column 'x' is in ignore and in dtype"),
        ({"decimal": ";"}, "option decimal of files"),
        ({"delimiter": "ab"}, "one character or 'tab'"),
        ({"encoding": "utf-9"}, "no encoding 'utf-9'"),
    ],
)
def test_wrong_options_of_columns_are_refused(prepared, options, text):
    with pytest.raises(ConfigError, match=text):
        prepared(x=cycle("1", "2"), options=options)


def test_the_types_of_columns_depend_on_training_rows_alone(prepared):
    before = prepared(x=cycle("1", "2", "3"), born=cycle("2001-05-07", "2010-12-31"))
    unlucky = IDS.index(before.ids("test")[0])
    born = cycle("2001-05-07", "2010-12-31")
    born[unlucky] = "2044-01-01"
    after = prepared("after", x=cycle("1", "2", "3"), born=born)
    assert after.encoding("bank") == before.encoding("bank")


def test_new_rows_are_read_as_training_rows_were(prepared, tmp_path):
    columns = {
        "amount": cycle("1.234,50 €", "7,25 €", "?", "12 €"),
        "born": cycle("07.05.2001", "31.12.2010", "n/a"),
        "member": cycle("ja", "Nein", ""),
        "town": cycle("Ulm", "Bonn", "-"),
        "note": cycle("same"),
    }
    dataset = prepared(**columns)
    rows = {"id": ["a", "b"], "amount": ["7.000", ""], "born": ["31.12.2010 12:00", "NULL"], "member": ["JA", "?"]}
    write(tmp_path / "new.csv", rows | {"town": ["Atlantis", "n/a"]})
    numeric, categories = new_rows(tmp_path / "new.csv", dataset).features("bank").source.gather(np.arange(2))
    names = dataset.party("bank").columns
    amount, absent = names.index("amount"), names.index("amount is missing")
    fitted = dataset.encoding("bank").numeric[0]
    assert numeric[0, amount].item() == pytest.approx(float(fitted.apply(np.array([7000.0]))[0, 0]))
    assert numeric[:, absent].tolist() == [0, 1]
    known = dict(zip(names[numeric.shape[1] :], categories.T.tolist(), strict=True))
    values = {column.name: ["unseen", *column.values.to_pylist()] for column in dataset.encoding("bank").categorical}
    assert [values["member"][one] for one in known["member"]] == ["true", ""]
    assert [values["town"][one] for one in known["town"]] == ["unseen", ""]
    assert [values["born: month"][one] for one in known["born: month"]] == ["12", ""]
    write(tmp_path / "new.csv", rows | {"town": ["Ulm", "Ulm"], "born": ["2001-05-07", "1.1.2000"]})
    with pytest.raises(
        DataError, match=r"new\.csv: column 'born', row 1 .* holds '2001-05-07', a date like %d\.%m\.%Y"
    ):
        new_rows(tmp_path / "new.csv", dataset).features("bank")


def test_files_may_have_a_delimiter_and_an_encoding_of_their_own(tmp_path):
    bank = write(tmp_path / "bank.csv", table(town=cycle("Köln", "Ulm")), ";", "cp1252")
    shop = write(tmp_path / "shop.csv", {"id": IDS, "x": cycle("1", "2", "3")}, "|")
    options = {"files.bank": bank, "files.shop": shop, "delimiter.bank": ";", "delimiter.shop": "|"}
    dataset = load("files", options={**options, "encoding.bank": "cp1252"})
    assert dataset.encoding("bank").categorical[0].values.to_pylist() == ["Köln", "Ulm"]
    assert dataset.party("shop").columns == ("x",)


def test_a_byte_order_mark_of_utf_8_overrides_the_option_encoding(tmp_path):
    bank = write(tmp_path / "bank.csv", table(town=cycle("Köln", "Ulm")), ",", "cp1252")
    shop = write(tmp_path / "shop.csv", {"id": IDS, "state": cycle("Thüringen", "Bayern")}, ",", "utf-8-sig")
    dataset = load("files", options={"files.bank": bank, "files.shop": shop, "encoding": "cp1252"})
    assert dataset.encoding("bank").categorical[0].values.to_pylist() == ["Köln", "Ulm"]
    assert dataset.encoding("shop").categorical[0].values.to_pylist() == ["Bayern", "Thüringen"]


@pytest.mark.parametrize(
    ("encoding", "given", "warned"),
    [("cp1252", "utf8", True), ("cp1252", "cp1252", False), ("utf_8", "utf8", False), ("utf-16", "utf-16", False)],
)
def test_a_text_in_utf_8_that_is_read_in_another_encoding_is_warned_of(tmp_path, caplog, encoding, given, warned):
    bank = write(tmp_path / "bank.csv", table(town=cycle("Köln", "Ulm")), ",", given)
    load("files", options={"files.bank": bank, "encoding": encoding})
    assert ("in UTF-8: letters outside of ASCII" in caplog.text) == warned
    assert ("encoding.bank" in caplog.text) == warned


def test_the_option_of_a_message_is_a_line_of_toml_that_cures(prepared):
    sizes = {"Size (mm)": ["n.v." if row == 7 else str(row % 9) for row in range(ROWS)]}
    with pytest.raises(DataError) as caught:
        prepared(**sizes, options={"split_seed": 1})
    found = re.search(r"set (missing_values = .*) or (dtype.* = .*) below \[data\.options\]", str(caught.value))
    for number, line in enumerate(found.groups()):
        dataset = prepared(f"cured {number}", **sizes, options=tomllib.loads(line))
        assert read_column(dataset, "Size (mm)").kind == ("number", "category")[number]


def test_several_texts_among_numbers_are_not_called_missing(prepared):
    """Naming the first as missing would not cure the others."""
    given = ["12o" if row == 7 else "13o" if row == 8 else str(row) for row in range(ROWS)]
    with pytest.raises(DataError, match=r"but for 2 of .*; correct them, or set dtype\.x = "):
        prepared(x=given, options={"split_seed": 1})


@pytest.mark.parametrize(("value", "named"), [("2001-05-07", False), ("unknown", True)])
def test_a_new_value_in_another_notation_is_not_called_missing(prepared, tmp_path, value, named):
    dataset = prepared(x=cycle("07/05/2001", "31/12/2010"), other=cycle("1", "2"))
    rows = {"id": ["n1"], "x": [value], "other": ["1"]}
    with pytest.raises(DataError) as caught:
        new_rows(Path(write(tmp_path / "new.csv", rows)), dataset).features("bank")
    assert ("missing_values" in str(caught.value)) == named


def test_rows_without_a_label_are_left_out_on_request_and_counted_once(tmp_path, caplog):
    columns = table(x=cycle("1", "2", "3")) | {"label": cycle("0", "1", "n/a", "1")}
    settings = {"files": {"bank": write(tmp_path / "b.csv", columns)}, "delimiter": ";", "unlabelled": "drop"}
    dataset = prepare("files", out=tmp_path / "out", options=settings)
    assert dataset.alignment.rows + dataset.alignment.test_rows == ROWS * 3 // 4
    (warning,) = (one.getMessage() for one in caplog.records if "label" in one.getMessage() and one.levelname != "INFO")
    assert warning.endswith("b.csv: 30 of all 120 rows have no label and are left out")


def test_rows_are_those_of_the_file_where_others_are_left_out_for_want_of_a_label(tmp_path):
    columns = table(x=["1o" if row == 8 else str(row) for row in range(ROWS)]) | {"label": cycle("", "0", "1")}
    settings = {"delimiter": ";", "unlabelled": "drop", "split_seed": 1}
    with pytest.raises(DataError, match="the first in row 9 below the header, '1o'"):
        load("files", options={**settings, "files": {"bank": write(tmp_path / "b.csv", columns)}})
    columns["id"] = [*IDS[:10], IDS[10], IDS[10], *IDS[12:]]
    with pytest.raises(DataError, match="1 ID in column 'id' occurs more than once, in rows 11, 12 below the header"):
        load("files", options={**settings, "files": {"bank": write(tmp_path / "c.csv", columns)}})
    unlabelled = columns | {"x": cycle("1", "2"), "label": [*columns["label"][:11], "", *columns["label"][12:]]}
    dataset = load("files", options={**settings, "files": {"bank": write(tmp_path / "d.csv", unlabelled)}})
    assert dataset.alignment.rows + dataset.alignment.test_rows == ROWS * 2 // 3 - 1


def test_ids_with_leading_zeros_in_one_file_are_joined_as_numbers_on_request(tmp_path):
    bank = write(tmp_path / "bank.csv", table(x=cycle("1", "2")) | {"id": [f"{row:08d}" for row in range(ROWS)]}, ",")
    shop = write(tmp_path / "shop.csv", {"id": [str(row) for row in range(ROWS)], "y": cycle("1", "2", "3")}, ",")
    options = {"files": {"bank": bank, "shop": shop}}
    with pytest.raises(
        DataError, match=r'IDs in \S*bank\.csv have leading zeros .*; .* with dtype\.id = "integer" below'
    ):
        load("files", options=options)
    dataset = load("files", options={**options, "dtype.id": "integer"})
    assert sorted(map(int, [*dataset.ids("train"), *dataset.ids("test")])) == list(range(ROWS))


@pytest.mark.parametrize(("form", "shared"), [("{:03d}", 70), ("{:.1f}", 60)])
def test_an_inner_join_warns_of_ids_that_are_the_same_only_as_numbers(form, shared, tmp_path, caplog):
    ids = [form.format(row) if row % 2 else str(row) for row in range(ROWS)]
    bank = write(tmp_path / "bank.csv", table(x=cycle("1", "2", "5")) | {"id": ids}, ",")
    shop = write(tmp_path / "shop.csv", {"id": [str(row) for row in range(ROWS)], "y": cycle("1", "2", "3")}, ",")
    options = {"files": {"bank": bank, "shop": shop}, "join": "inner"}
    load("files", options=options)
    assert re.search(rf"only {shared} IDs are in all .*, but {ROWS} are as numbers: IDs in \S*bank\.csv", caplog.text)
    assert 'read 007 and 7.0 as 7 with dtype.id = "integer"' in caplog.text
    caplog.clear()
    dataset = load("files", options={**options, "dtype.id": "integer"})
    assert dataset.alignment.rows + dataset.alignment.test_rows == ROWS
    assert "as numbers" not in caplog.text


def test_ids_with_a_fraction_of_zeros_are_whole_on_request(tmp_path):
    bank = write(tmp_path / "bank.csv", table(x=cycle("1", "2")) | {"id": [f"{row}.0" for row in range(ROWS)]}, ",")
    pq.write_table(pa.table({"id": np.arange(ROWS, dtype=float), "y": cycle(1, 2, 3)}), tmp_path / "shop.parquet")
    options = {"files": {"bank": bank, "shop": str(tmp_path / "shop.parquet")}}
    with pytest.raises(DataError, match=r"dtype\.id=integer"):
        load("files", options=options)
    dataset = load("files", options={**options, "dtype.id": "integer"})
    assert sorted(map(int, [*dataset.ids("train"), *dataset.ids("test")])) == list(range(ROWS))


def test_points_that_may_separate_thousands_are_warned_of_and_cured_by_party(tmp_path, caplog):
    bank = write(tmp_path / "bank.csv", table(x=cycle("0.5", "1.25", "7")))
    shop = write(tmp_path / "shop.csv", {"id": IDS, "sales": cycle("1.993", "86", "739", "3.093")})
    options = {"files": {"bank": bank, "shop": shop}, "delimiter": ";"}
    prepare("files", out=tmp_path / "one", options=options)
    assert "column 'sales': '1.993' is read as a decimal number" in caplog.text
    assert "column 'x'" not in caplog.text
    caplog.clear()
    dataset = prepare("files", out=tmp_path / "two", options={**options, "decimal": {"shop": ","}})
    styles = {party: dataset.encoding(party).reader.columns[0].style for party in ("bank", "shop")}
    assert (styles["bank"].decimal, styles["shop"].decimal, styles["shop"].thousands) == (".", ",", ".")
    assert "is read as a decimal number" not in caplog.text
    with pytest.raises(ConfigError, match=r"decimal\.shp: no file is that of 'shp'; did you mean 'shop'"):
        prepare("files", out=tmp_path / "three", options={**options, "decimal": {"shp": ","}})


@pytest.mark.parametrize(("years", "warned"), [(("44", "03", "98"), True), (("14", "03", "98"), False)])
def test_two_digit_years_far_ahead_are_warned_of(prepared, caplog, years, warned):
    prepared(born=cycle(*(f"19.09.{year}" for year in years)))
    assert ("others as 2000 and later, up to 2044 here" in caplog.text) is warned


def test_a_timestamp_with_a_time_zone_is_the_same_date_as_its_text(tmp_path):
    zone = ZoneInfo("Europe/Zurich")
    moments = [datetime.datetime(2020, 1, 1, 23, 30, tzinfo=zone) + datetime.timedelta(days=row) for row in range(ROWS)]
    features = {}
    for name, values in {
        "texts": list(map(str, moments)),
        "stamps": pa.array(moments, pa.timestamp("us", str(zone))),
    }.items():
        pq.write_table(pa.table({**table(at=values)}), tmp_path / f"{name}.parquet")
        options = {"files": {"bank": str(tmp_path / f"{name}.parquet")}}
        party = prepare("files", out=tmp_path / name, options=options).party("bank")
        features[name] = [part.tolist() for part in party.train.gather(np.arange(len(party.train)))]
    assert features["texts"] == features["stamps"]


def test_the_index_that_pandas_writes_is_no_feature_unless_it_is_named(tmp_path):
    pq.write_table(pa.table({**table(x=cycle(1, 2, 3)), "__index_level_0__": range(ROWS)}), tmp_path / "bank.parquet")
    options = {"files": {"bank": str(tmp_path / "bank.parquet")}}
    assert prepare("files", out=tmp_path / "one", options=options).party("bank").columns == ("x",)
    named = {**options, "dtype": {"__index_level_0__": "number"}}
    assert prepare("files", out=tmp_path / "two", options=named).party("bank").columns == ("x", "__index_level_0__")


def test_the_index_of_a_table_that_was_read_and_saved_again_is_no_feature(prepared):
    numbered = {"Unnamed: 0": [str(row) for row in range(ROWS)], "Unnamed: 0.1": [str(row) for row in range(ROWS)]}
    assert prepared(**numbered, x=cycle("1", "2", "3")).party("bank").columns[0] == "x"


def test_decimals_of_a_database_are_missing_where_their_number_marks_that(tmp_path):
    values = pa.array([Decimal(value) for value in cycle(-999, 5, 7, 9)], pa.decimal128(8, 2))
    pq.write_table(pa.table({**table(), "x": values}), tmp_path / "bank.parquet")
    options = {"files": {"bank": str(tmp_path / "bank.parquet")}, "missing": "mean", "missing_values": ["-999"]}
    dataset = prepare("files", out=tmp_path / "out", options=options)
    absent = {row for row, value in encoded(dataset, "x is missing").items() if value}
    assert absent == {row for row in dataset.ids("train") if IDS.index(row) % 4 == 0}


def test_a_label_that_marks_none_does_so_with_a_fraction_of_zero_too(tmp_path):
    path = write(tmp_path / "bank.csv", {**table(x=cycle("1", "2", "3")), "label": cycle("-1.0", "0.0", "1.0", "")})
    options = {"files": {"bank": path}, "delimiter": ";", "missing_values": ["-1"], "unlabelled": "drop"}
    dataset = prepare("files", out=tmp_path / "out", options=options)
    assert dataset.classes == 2


@pytest.mark.parametrize("text", ["1" + " " * 3000 + "!", "-" + " " * 60_000 + "!", "1 " * 1500 + "!"])
def test_a_long_text_of_spaces_is_refused_beside_numbers_at_once_and_briefly(prepared, text):
    with pytest.raises(DataError, match="is numbers but for 1 of") as refused:
        prepared(x=[text, *(str(row) for row in range(1, ROWS))])
    assert len(str(refused.value)) < 500


def test_a_percentage_is_never_read_beside_a_plain_number(prepared, tmp_path):
    mixed = prepared(out="mixed", x=cycle("12 %", "0.12", "7 %", "3 %"))
    assert read_column(mixed, "x").kind != "number"
    dataset = prepared(x=cycle("12 %", "7 %", "0", "3 %"))
    assert read_column(dataset, "x").kind == "number"
    write(tmp_path / "new.csv", {"id": ["n1"], "x": ["0.12"]})
    pq.write_table(pa.table({"id": ["n1"], "x": [0.12]}), tmp_path / "new.parquet")
    for name in ("new.csv", "new.parquet"):
        with pytest.raises(DataError, match=r"0\.12"):
            new_rows(tmp_path / name, dataset).features("bank")


@pytest.mark.parametrize("written", ["20010507.0", "2001-05-07 00:00:00+01", "2001-05-07 00:00:00+01:00"])
def test_dates_of_databases_and_of_columns_with_an_empty_row_are_dates(prepared, written):
    others = [written.replace("07", f"{day:02d}") for day in range(8, 28)]
    assert read_column(prepared(x=cycle(written, *others, "")), "x").kind == "date"


def test_dates_in_eight_digits_are_dates_in_a_column_of_floats_too(tmp_path):
    days = pa.array([20010501.0 + row % 28 if row % 7 else None for row in range(ROWS)])
    pq.write_table(pa.table({**table(), "x": days}), tmp_path / "bank.parquet")
    options = {"files": {"bank": str(tmp_path / "bank.parquet")}, "missing": "mean"}
    dataset = prepare("files", out=tmp_path / "out", options=options)
    assert read_column(dataset, "x").kind == "date"


def test_a_number_that_no_training_row_lacked_counts_as_its_mean_in_new_rows(prepared, tmp_path, caplog):
    """No weight of an indicator was trained."""
    dataset = prepared(x=[str(row % 7) for row in range(ROWS)], y=cycle("1", "2", ""))
    write(tmp_path / "new.csv", {"id": ["n1", "n2"], "x": ["", "3"], "y": ["", "2"]})
    found = new_rows(tmp_path / "new.csv", dataset).features("bank").source.gather(np.arange(2))[0]
    columns = dataset.party("bank").columns
    assert found[0, columns.index("x is missing")] == 0.0
    assert found[0, columns.index("y is missing")] == 1.0
    assert "column 'x': 1 of 2 rows have no number, which every training row had; they count as its mean" in caplog.text
    assert "column 'y'" not in caplog.text
    write(tmp_path / "new.csv", {"id": ["n1", "n2"], "x": ["1", "3"], "y": ["", ""]})
    new_rows(tmp_path / "new.csv", dataset).features("bank")
    assert "column 'y': none of 2 rows has a number; they count as its mean" in caplog.text
