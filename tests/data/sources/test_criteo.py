import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.preprocessing import LabelEncoder, MinMaxScaler

from flower_vfl import run
from flower_vfl.config import load_config
from flower_vfl.data.clicks import blocks, survey
from flower_vfl.data.encoding.encoding import NumericEncoding
from flower_vfl.data.sources.catalog import load, prepare
from flower_vfl.data.store.dataset import open_dataset
from flower_vfl.errors import ConfigError, DataError, OutputExistsError, StorageError
from flower_vfl.files import FolderLock
from tests.cases import parametrize
from tests.data.clicks.click_files import CATEGORIES, NUMBERS, criteo_rows, read_back, write_criteo, write_lines

FOLDER = Path(os.environ.get("FLOWER_VFL_TEST_DATA", "nowhere"))
REAL = FOLDER / "criteo_train_1999rows.tsv", FOLDER / "criteo_kaggle_csv_1999rows.csv"
ROWS = criteo_rows(400)


@pytest.fixture
def raw(tmp_path):
    return write_criteo(tmp_path / "raw" / "train.txt", ROWS)


@pytest.fixture
def small_blocks(monkeypatch):
    """Read about 8 blocks for 400 rows."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 15_000)


def part(dataset, name):
    """Return the numbers, ids and labels of a part, and the rows of the file that they come from."""
    source = getattr(dataset.party("a"), name)
    numeric, ids = (tensor.numpy() for tensor in source.gather(np.arange(len(source))))
    return numeric, ids, getattr(dataset.labels(), name), [int(row) - 1 for row in dataset.ids(name)]


def column(rows, taken, name):
    """Return a column of some rows as texts."""
    place = 1 + [*NUMBERS, *CATEGORIES].index(name)
    return [rows[row][place] for row in taken]


def number(text):
    return float(text) if text else np.nan


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_row_is_in_one_part_with_its_label_and_its_values(raw, small_blocks):
    dataset = load("criteo", path=raw, options={"min_count": 1})
    assert (dataset.parties, dataset.label_party) == (("a",), "label")
    taken = {name: part(dataset, name)[3] for name in ("train", "test")}
    assert sorted(taken["train"] + taken["test"]) == list(range(400))
    assert 20 <= len(taken["test"]) <= 60
    values = [encoding.values.to_pylist() for encoding in dataset.encoding("a").categorical]
    for name, rows in taken.items():
        numeric, ids, labels, _ = part(dataset, name)
        assert rows == sorted(rows)
        assert labels.tolist() == [int(ROWS[row][0]) for row in rows]
        assert numeric.shape == (len(rows), 26)
        for place, category in enumerate(CATEGORIES):
            known = values[place]
            expected = [text if text in known else "?" for text in column(ROWS, rows, category)]
            assert [known[value - 1] if value else "?" for value in ids[:, place]] == expected
    dataset.verify()


def test_numbers_of_lines_that_are_not_those_of_the_rows_are_refused(raw, small_blocks):
    dataset = load("criteo", path=raw)
    assert sorted(map(int, dataset.all_ids().to_pylist())) == list(range(1, 401))
    file = dataset.folder / "ids" / "train.parquet"
    pq.write_table(pq.read_table(file)[1:], file)
    for read in (dataset.verify, dataset.all_ids):
        with pytest.raises(DataError, match=r"train\.parquet"):
            read()
    pq.write_table(pa.table({"id": pa.array(range(350), pa.int64())})[: dataset.rows("train")], file)
    with pytest.raises(DataError, match=r"train\.parquet is not as it was prepared"):
        dataset.verify()


def test_vocabularies_and_scales_come_from_training_rows_alone(raw, small_blocks):
    dataset = load("criteo", path=raw)
    encoding, train = dataset.encoding("a"), part(dataset, "train")[3]
    for place, category in enumerate(CATEGORIES):
        counts = Counter(column(ROWS, train, category))
        expected = sorted(text for text, count in counts.items() if count >= 2)
        assert encoding.categorical[place].values.to_pylist() == expected
    for name, found in zip(NUMBERS, encoding.numeric, strict=True):
        fitted = NumericEncoding.fit(name, np.array([number(text) for text in column(ROWS, train, name)]), "mean")
        assert found.transform == fitted.transform
        assert (found.mean, found.scale) == pytest.approx((fitted.mean, fitted.scale), rel=1e-12)
    numeric, _, _, test = part(dataset, "test")
    expected = encoding.numeric[0].apply(np.array([number(text) for text in column(ROWS, test, "I1")]))
    assert np.array_equal(numeric[:, :2], expected)


def test_unseen_and_rare_values_share_bucket_zero_and_a_missing_one_is_a_value(raw):
    dataset = load("criteo", path=raw)
    counts = Counter(column(ROWS, part(dataset, "train")[3], "C1"))
    _, ids, _, test = part(dataset, "test")
    for text, value in zip(column(ROWS, test, "C1"), ids[:, 0], strict=True):
        assert (value == 0) == (counts[text] < 2)
        assert (value == 1) == (text == "")


@parametrize("name", ["train.txt", "train.txt.gz", "dac/train.txt", "train.csv", "train.csv.gz"], quick=1)
def test_every_layout_gives_the_same_numbers(tmp_path, raw, name):
    write_criteo(tmp_path / "other" / name, ROWS, ending="\r\n" if name == "train.csv" else "\n")
    one, other = load("criteo", path=raw), load("criteo", path=tmp_path / "other")
    for which in ("train", "test"):
        for mine, theirs in zip(part(one, which)[:3], part(other, which)[:3], strict=True):
            assert np.array_equal(mine, theirs)
    first = int(other.ids("train")[0])
    assert first == int(one.ids("train")[0]) + ("csv" in name) * 9_999_999
    assert one.encoding("a") == other.encoding("a")


def test_the_file_itself_can_have_any_name(tmp_path):
    assert load("criteo", path=write_criteo(tmp_path / "ads.tsv", ROWS)).rows("train") > 300


def test_new_rows_are_encoded_as_the_prepared_ones(raw):
    dataset = load("criteo", path=raw)
    numeric, ids, _, test = part(dataset, "test")
    table = pa.table({name: column(ROWS, test, name) for name in [*NUMBERS, *CATEGORIES]})
    again = dataset.encoding("a").encode(table)
    assert np.array_equal(again[0], numeric)
    assert np.array_equal(again[1], ids)


def test_as_published_repeats_scikit_learns_encoders_on_all_rows(raw, tmp_path, small_blocks):
    dataset = prepare("criteo", source=raw, out=tmp_path / "out", published=True, options={"sample": 1.0})
    assert dataset.options["fit"] == "all"
    train, test = part(dataset, "train"), part(dataset, "test")
    order = np.argsort(train[3] + test[3])
    numeric, ids = (np.concatenate([train[kind], test[kind]])[order] for kind in (0, 1))
    for place, name in enumerate(NUMBERS):
        filled = [[float(text or 0)] for text in column(ROWS, range(400), name)]
        assert numeric[:, place] == pytest.approx(MinMaxScaler().fit_transform(filled)[:, 0], abs=1e-6)
    for place, name in enumerate(CATEGORIES):
        assert np.array_equal(ids[:, place], LabelEncoder().fit_transform(column(ROWS, range(400), name)) + 1)


def test_as_published_draws_a_tenth(tmp_path):
    raw = write_criteo(tmp_path / "train.txt", criteo_rows(4000))
    dataset = prepare("criteo", source=raw, out=tmp_path / "out", published=True)
    assert 320 < dataset.rows("train") + dataset.rows("test") < 480
    assert dataset.rows("test") < 80


def test_a_set_without_published_preprocessing_names_those_that_have_one(tmp_path):
    with pytest.raises(ConfigError, match=r"digits has no preprocessing .*; criteo, avazu have"):
        prepare("digits", out=tmp_path / "out", published=True)


def test_another_seed_draws_other_rows_and_the_same_seed_the_same(raw, tmp_path):
    one, two, three = (
        load("criteo", path=raw, options={"split_seed": seed, "sample": 0.5}, cache=tmp_path / name)
        for seed, name in ((0, "one"), (0, "two"), (1, "three"))
    )
    assert one.ids("train") == two.ids("train")
    assert one.alignment == two.alignment
    assert one.ids("train") != three.ids("train")
    assert one.alignment.digest != three.alignment.digest
    assert 150 < one.rows("train") + one.rows("test") < 250


def test_the_label_party_can_have_columns_too(raw):
    dataset = load("criteo", path=raw, options={"columns": "I1, I2,C1", "label_columns": "C1,C26"})
    assert dataset.parties == ("a", "label")
    assert dataset.party("a").columns == ("I1", "I1 is missing", "I2", "I2 is missing", "C1")
    assert dataset.party("label").columns == ("C1", "C26")
    with pytest.raises(ConfigError, match="no column 'C27'; did you mean 'C7'"):
        load("criteo", path=raw, options={"columns": "C27"})


def bad_rows(*changes):
    rows = [list(row) for row in ROWS]
    for row, change in changes:
        change(rows[row])
    return rows


def set_value(place, text):
    def change(row):
        row[place] = text

    return change


BAD = [
    (lambda row: row.pop(), "39 fields, 40 are needed"),
    (lambda row: row.append(""), "41 fields, 40 are needed"),
    (set_value(0, "2"), "label is not 0 or 1"),
    (set_value(0, ""), "label is not 0 or 1"),
    (set_value(0, "yes"), "label is not 0 or 1"),
    (set_value(3, "1.5"), "I3 is not a whole number of 32 bits, or nothing"),
    (set_value(3, "9" * 12), "I3 is not a whole number of 32 bits, or nothing"),
    (set_value(14, "68fd1e6"), "C1 is not 8 hexadecimal digits, or nothing"),
    (set_value(39, "68fd1e6x"), "C26 is not 8 hexadecimal digits, or nothing"),
    (set_value(39, "\xe4\xf6\xfc"), "C26 is not 8 hexadecimal digits, or nothing"),
    (lambda row: row.clear(), "label is not 0 or 1"),
    (lambda row: row.append("\xe9"), "41 fields, 40 are needed"),
]


@parametrize(("change", "words"), BAD, quick=3)
def test_a_bad_line_in_the_middle_is_left_out_counted_and_named(tmp_path, small_blocks, caplog, change, words):
    raw = write_criteo(tmp_path / "train.txt", bad_rows((200, change)))
    with caplog.at_level("WARNING", "flower_vfl"):
        dataset = prepare("criteo", source=raw, out=tmp_path / "out", options={"bad_lines": 0.01, "min_count": 1})
    assert f"1 of 400 lines are bad and left out; line 201: {words}" in caplog.text
    rows = {int(row) for name in ("train", "test") for row in dataset.ids(name)}
    assert rows == set(range(1, 401)) - {201}
    labels = part(dataset, "train")
    assert labels[2].tolist() == [int(ROWS[row][0]) for row in labels[3]]
    with pytest.raises(DataError, match=rf"1 of the first \d+ lines are bad, .*line 201: {words}"):
        prepare("criteo", source=raw, out=tmp_path / "none", options={"bad_lines": 0})
    assert not list(tmp_path.glob(".none*"))


def test_the_first_bad_lines_of_many_are_named(tmp_path):
    raw = write_criteo(tmp_path / "train.txt", bad_rows(*((row, set_value(5, "x")) for row in range(10, 400))))
    with pytest.raises(DataError, match=r"390 of the first 400 lines .*line 11: .*; line 15: I5[^;]*; \.\.\.$"):
        load("criteo", path=raw)


@pytest.mark.parametrize(
    ("delimiter", "rows", "words"),
    [
        (",", ROWS, "fields are separated by commas; without a header, tabs are needed"),
        (";", ROWS, "fields are separated by semicolons"),
        ("\t", [row[1:] for row in ROWS], "line 1 has 39 fields, as in the published test file, which has no labels"),
        ("\t", [row[:20] for row in ROWS], "line 1 has 20 fields separated by tabs, 40 are needed"),
        (",", [["a", "b"], ["1", "2"]], "line 1 has 1 fields separated by tabs, 40 are needed"),
        (",", [["Id", *NUMBERS, *CATEGORIES]], "no column 'Label'.* The published test file has no labels"),
        (",", [["Id", "Label", *NUMBERS, *CATEGORIES[1:]]], "no column 'C1'; did you mean"),
        (",", [["Id", "Label", "I1", *NUMBERS, *CATEGORIES]], "2 columns named 'I1'"),
        (";", [["Id", "Label", *NUMBERS, *CATEGORIES]], "separated by semicolons; commas or tabs are needed"),
        (",", [["Id", "Label", *NUMBERS, *CATEGORIES]], "has no rows"),
    ],
)
def test_another_file_is_refused(tmp_path, delimiter, rows, words):
    with pytest.raises(DataError, match=words):
        load("criteo", path=write_lines(tmp_path / "x", rows, delimiter=delimiter))


def test_an_empty_file_and_a_folder_without_one_are_refused(tmp_path):
    (tmp_path / "train.txt").write_text("\n")
    with pytest.raises(DataError, match="is empty"):
        load("criteo", path=tmp_path)
    (tmp_path / "train.txt").unlink()
    with pytest.raises(DataError, match=r"holds none of train\.txt, .*get train\.txt"):
        load("criteo", path=tmp_path)
    with pytest.raises(DataError, match=r"criteo needs its file: get train\.txt .* name it as --from"):
        load("criteo")


def test_a_file_in_utf16_and_a_truncated_gzip_are_refused_and_leave_nothing(tmp_path):
    path = tmp_path / "train.txt"
    path.write_bytes("\t".join(ROWS[0]).encode("utf-16"))
    with pytest.raises(DataError, match="UTF-16"):
        prepare("criteo", source=path, out=tmp_path / "out")
    packed = write_criteo(tmp_path / "train.txt.gz", ROWS * 20)
    packed.write_bytes(packed.read_bytes()[:-100])
    with pytest.raises(DataError, match="no whole gzip file"):
        prepare("criteo", source=packed, out=tmp_path / "out")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["train.txt", "train.txt.gz"]


def test_a_line_that_is_cut_at_the_end_is_a_bad_one(tmp_path, caplog):
    raw = write_criteo(tmp_path / "train.txt", ROWS)
    raw.write_bytes(raw.read_bytes()[:-150])
    load("criteo", path=raw, options={"bad_lines": 0.01})
    assert "1 of 400 lines are bad" in caplog.text
    assert "line 400" in caplog.text


def test_ids_that_repeat_are_refused(tmp_path, small_blocks):
    raw = write_criteo(tmp_path / "train.csv", ROWS)
    lines = raw.read_text().splitlines()
    lines[300] = lines[7].split(",")[0] + "," + lines[300].split(",", 1)[1]
    raw.write_text("\n".join(lines))
    with pytest.raises(DataError, match="rows 7 and 300 have the same ID"):
        load("criteo", path=raw)


def test_opening_data_that_another_process_prepares_waits_for_it(raw):
    folder = load("criteo", path=raw).folder
    shutil.rmtree(folder)
    place = folder.with_name(f".{folder.name}.partial")
    place.mkdir()
    lock = FolderLock(place)
    release = threading.Timer(1.0, lock.release)
    release.start()
    assert load("criteo", path=raw).folder == folder
    assert release.finished.is_set()


def test_labels_that_are_all_the_same_are_refused(tmp_path):
    raw = write_criteo(tmp_path / "train.txt", [["0", *row[1:]] for row in ROWS])
    with pytest.raises(DataError, match=r"all .* training rows have the same label"):
        load("criteo", path=raw)


PREPARE_AND_KILL = """
import os, signal, sys
from pathlib import Path
from flower_vfl.data import prepare
from flower_vfl.data.clicks import blocks
blocks.BLOCK_BYTES = 15_000
at = float(sys.argv[3])
prepare("criteo", source=Path(sys.argv[1]), out=Path(sys.argv[2]), options={"min_count": 1},
        progress=lambda done: done >= at and os.kill(os.getpid(), signal.SIGKILL))
"""


@parametrize("at", [0.3, 0.62, 0.7, 0.85, 0.949], quick=1)
def test_after_a_kill_the_work_continues_and_gives_the_same_files(raw, tmp_path, small_blocks, monkeypatch, at):
    undisturbed, out = tmp_path / "undisturbed", tmp_path / "out"
    prepare("criteo", source=raw, out=undisturbed, options={"min_count": 1})
    done = subprocess.run([sys.executable, "-c", PREPARE_AND_KILL, str(raw), str(out), str(at)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not out.exists()
    assert any((tmp_path / ".out.partial" / "notes").iterdir())
    parsed = []
    monkeypatch.setattr(survey, "parse", lambda block, made: parsed.append(block.number) or PARSE(block, made))
    prepare("criteo", source=raw, out=out, options={"min_count": 1})
    assert contents(out) == contents(undisturbed)
    if at == 0.3:
        assert min(parsed) > 0
        assert len(parsed) < 8
    else:
        assert not parsed
    assert not (tmp_path / ".out.partial").exists()


PARSE = survey.parse


def test_work_that_was_begun_with_other_options_is_not_continued(raw, tmp_path, small_blocks):
    def stop(done):
        if done > 0.3:
            raise KeyboardInterrupt

    for options in ({"sample": 0.5}, {"min_count": 1}):
        with pytest.raises(KeyboardInterrupt):
            prepare("criteo", source=raw, out=tmp_path / "out", options=options, progress=stop)
    assert prepare("criteo", source=raw, out=tmp_path / "out").alignment == load("criteo", path=raw).alignment


def test_a_full_disk_is_reported_and_the_work_continues_when_there_is_space(raw, tmp_path, small_blocks, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("flower_vfl.data.store.layout.os.pwrite", full)
        with pytest.raises(StorageError, match=r"No space left on device.*make space"):
            prepare("criteo", source=raw, out=tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr(survey, "parse", lambda *_: pytest.fail("parsed again"))
        prepare("criteo", source=raw, out=tmp_path / "out")
    prepare("criteo", source=raw, out=tmp_path / "undisturbed")
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")


def test_two_preparations_of_one_folder_at_once_are_refused(raw, tmp_path):
    def prepare_again(done):
        if done < 0.9:
            with pytest.raises(OutputExistsError, match="in use by"):
                prepare("criteo", source=raw, out=tmp_path / "out")

    prepare("criteo", source=raw, out=tmp_path / "out", progress=prepare_again)
    with pytest.raises(OutputExistsError, match="exists"):
        prepare("criteo", source=raw, out=tmp_path / "out")


@pytest.mark.slow
def test_a_prepared_folder_trains_with_its_preset_and_both_parties_columns(raw, tmp_path):
    prepare("criteo", source=raw, out=tmp_path / "out", options={"label_columns": "all"})
    settings = {"data.path": str(tmp_path / "out"), "training.epochs": "1", "training.batch_size": "64"}
    result = run(load_config("criteo", settings), out=tmp_path / "run")
    assert result.summary["dataset"]["name"] == "criteo"
    assert result.summary["dataset"]["rows"] == open_dataset(tmp_path / "out").rows("train")
    assert result.summary["parties"] == {"features": ["a"], "label_features": True}


@pytest.mark.skipif(not REAL[0].is_file(), reason="needs the sample rows in the folder that FLOWER_VFL_TEST_DATA names")
def test_real_rows_of_both_layouts_are_the_same():
    one, other = (load("criteo", path=path, options={"bad_lines": 0, "min_count": 1}) for path in REAL)
    assert one.rows("train") + one.rows("test") == 1999
    rows = read_back(REAL[0], "\t")
    for which in ("train", "test"):
        numeric, ids, labels, taken = part(one, which)
        assert labels.tolist() == [int(rows[row][0]) for row in taken]
        for mine, theirs in zip((numeric, ids, labels), part(other, which), strict=False):
            assert np.array_equal(mine, theirs)
        table = pa.table({name: column(rows, taken, name) for name in [*NUMBERS, *CATEGORIES]})
        again = one.encoding("a").encode(table)
        assert np.array_equal(again[0], numeric)
        assert np.array_equal(again[1], ids)


TENTH = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from criteo_like import ROWS, sizes, write
folder = Path(sys.argv[2])
write(folder / "train.txt", ROWS // 10, scale=0.1)
from flower_vfl.data import prepare
options = {"min_count": 1, "fit": "all", "scaling": "min-max"}
dataset = prepare("criteo", source=folder / "train.txt", out=folder / "out", options=options)
levels = [len(column.values) for column in dataset.encoding("a").categorical]
wrong = [pair for pair in zip(levels, sizes(0.1)) if pair[0] - pair[1] not in (0, 1)]  # one more: missing
print(dataset.rows("train") + dataset.rows("test"), len(wrong))
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.slow
@pytest.mark.release
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.timeout(1800)
def test_a_tenth_of_the_real_rows_and_values_is_prepared_in_bounded_memory(tmp_path):
    benchmarks = Path(__file__).parents[3] / "benchmarks"
    command = [sys.executable, "-c", TENTH, str(benchmarks), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows, wrong, kilobytes = map(int, done.stdout.split()[-3:])
    assert (rows, wrong) == (4_584_061, 0)
    assert kilobytes < 1_000_000  # not `ru_maxrss`, which outlives exec and would include pytest's memory
