"""Bad tables of a user: one message with file, column, row and the option to set, and exit code 2."""

import pytest

from flower_vfl.cli import main

ROWS = [(f"p{row}", str(row % 7), str(row % 9), str(row % 2)) for row in range(60)]


def text(rows=ROWS, header=("id", "x", "y", "label"), delimiter=","):
    return "\n".join(delimiter.join(row) for row in [header, *rows]) + "\n"


def with_value(row, place, value):
    """Return the table with another value in one cell; `row` counts from 1."""
    changed = [list(one) for one in ROWS]
    changed[row - 1][place] = value
    return text(changed)


BAD = {
    "delimiter": (
        text(delimiter=";"),
        ["delimiter=,"],
        ["separated by semicolons", 'delimiter.bank = ";" below [data.options]', "--set 'delimiter.bank=;'"],
    ),
    "tabs": (text(delimiter="\t"), ["delimiter=;"], ["separated by tabs", 'delimiter.bank = "tab"']),
    "encoding": (with_value(4, 1, "é").encode("cp1252"), [], ["line 5", "UTF-8", "--set encoding.bank=cp1252"]),
    "utf-16": (text().encode("utf-16"), [], ["UTF-16", "encoding.bank=utf-16"]),
    "repeated id": (with_value(9, 0, "p2"), [], ["'id'", "rows 3, 9 below the header", "option id"]),
    "missing id": (with_value(9, 0, ""), [], ["'id'", "row 9"]),
    "label nan": (with_value(7, 3, "NaN"), [], ["'label'", "row 7 below the header", "--set unlabelled=drop"]),
    "one class": (text([(*row[:3], "1") for row in ROWS]), [], ["'label'", "'1' in every training row", "two classes"]),
    "float ids": (
        text([(f"{number}.0", *row[1:]) for number, row in enumerate(ROWS)]),
        [],
        ["'id'", "row 1", "dtype.id=integer"],
    ),
    "broken ids": (
        text([(f"{number}.5", *row[1:]) for number, row in enumerate(ROWS)]),
        ["dtype.id=integer"],
        ["'id'", "row 1", "no whole number"],
    ),
    "almost numbers": (
        text([(row[0], f"{number}{'o' * (number == 20)}", *row[2:]) for number, row in enumerate(ROWS)]),
        ["split_seed=1"],
        ["'x'", "'20o'", 'missing_values = ["20o"]', 'dtype.x = "category"'],
    ),
    "missing number": (with_value(5, 1, "?"), [], ["'x'", "row 5", 'missing = "mean"']),
    "ragged": (text().replace("p3,3,3,1", "p3,3,3,1,9"), [], ["row 4", "option delimiter"]),
    "few rows": (
        text(ROWS[:3]),
        ["test_fraction=0.001"],
        ["no row is left for the test part", "3 + 0 rows", "option test_fraction"],
    ),
    "no label": (text(header=("id", "x", "y", "lable")), [], ["'label'", "did you mean 'lable'"]),
}


@pytest.mark.parametrize("mistake", BAD)
def test_a_bad_table_ends_with_one_message_and_code_2(tmp_path, capsys, mistake):
    content, options, fragments = BAD[mistake]
    path = tmp_path / "bank.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    settings = [word for option in [f"files.bank={path}", *options] for word in ("--set", option)]
    with pytest.raises(SystemExit) as done:
        main(["data", "prepare", "files", "--out", str(tmp_path / "out"), *settings])
    message = capsys.readouterr().err
    assert done.value.code == 2
    assert "Traceback" not in message
    for word in [*fragments, *(["bank.csv"] if mistake not in ("few rows", "no label") else [])]:
        assert word in message
    assert not (tmp_path / "out").exists()


def test_fewer_rows_than_a_batch_end_a_run_before_it_has_a_folder(tmp_path, capsys):
    (tmp_path / "bank.csv").write_text(text())
    (tmp_path / "shop.csv").write_text(text([row[:3] for row in ROWS], ("id", "u", "v")))
    prepare = ["data", "prepare", "files", "--out", str(tmp_path / "own")]
    for party in ("bank", "shop"):
        prepare += ["--set", f"files.{party}={tmp_path}/{party}.csv"]
    with pytest.raises(SystemExit) as done:
        main(prepare)
    assert done.value.code == 0
    out = tmp_path / "run"
    with pytest.raises(SystemExit) as done:
        main(["run", str(tmp_path / "own"), "--out", str(out), "--set", "training.batch_size=64"])
    message = capsys.readouterr().err
    assert done.value.code == 2
    assert "training.batch_size is 64" in message
    assert "leave it out: it fits the rows" in message
    assert not out.exists()


def test_a_table_in_utf_16_is_read_with_the_option_that_the_message_names(tmp_path):
    (tmp_path / "bank.csv").write_bytes(text().encode("utf-16"))
    settings = ["--set", f"files.bank={tmp_path}/bank.csv", "--set", "encoding=utf-16"]
    with pytest.raises(SystemExit) as done:
        main(["data", "prepare", "files", "--out", str(tmp_path / "own"), *settings])
    assert done.value.code == 0


@pytest.mark.parametrize(
    ("header", "left"), [("id,x,y,label,", "5"), (",id,x,y,label", "1"), (",id,x,y,label,", "1, 6")]
)
def test_columns_without_a_name_are_left_out_and_reported(tmp_path, capsys, header, left):
    """Spreadsheets write such a column at the end, pandas writes row numbers as the first column."""
    prefix, suffix = ("7," if header.startswith(",") else ""), ("," if header.endswith(",") else "")
    (tmp_path / "bank.csv").write_text(f"{header}\n" + "".join(f"{prefix}{','.join(row)}{suffix}\n" for row in ROWS))
    with pytest.raises(SystemExit) as done:
        main(["data", "prepare", "files", "--out", str(tmp_path / "own"), "--set", f"files.bank={tmp_path}/bank.csv"])
    shown = capsys.readouterr()
    assert done.value.code == 0
    assert f"left out: column {left}, which the header gives no name" in " ".join(shown.err.split())
    assert "bank: x" in shown.out
    assert "dtype.=" not in shown.out


def test_ids_in_another_notation_are_described_by_their_form_and_not_quoted(tmp_path, capsys):
    (tmp_path / "bank.csv").write_text(text())
    (tmp_path / "shop.csv").write_text(text([(f"K-{row[0][1:]:>03}", *row[1:3]) for row in ROWS], ("id", "u", "v")))
    prepare = ["data", "prepare", "files", "--out", str(tmp_path / "own"), "--set", "join=inner"]
    for party in ("bank", "shop"):
        prepare += ["--set", f"files.{party}={tmp_path}/{party}.csv"]
    with pytest.raises(SystemExit) as done:
        main(prepare)
    message = capsys.readouterr().err
    assert done.value.code == 2
    assert "'a99' in" in message
    assert "'A-999' in" in message
    assert "option id" in message
    assert "p12" not in message
