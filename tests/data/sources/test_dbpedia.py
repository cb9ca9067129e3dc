import csv
import gzip
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from flower_vfl.data.sources.catalog import available, load, prepare
from flower_vfl.data.sources.dbpedia import CLASSES, PERMUTED
from flower_vfl.data.store.dataset import open_dataset
from flower_vfl.data.store.scoring import new_rows
from flower_vfl.errors import ConfigError, DataError
from tests.data.text_files import WORDS, dbpedia_text, glove_lines, write_dbpedia

PLAIN = {"vectors": "none", "length": 12}
REAL = Path(os.environ.get("FLOWER_VFL_TEST_DATA", "")) / "dbpedia_5000rows.csv.gz"


def words(row):
    """Return the words of a text of the generated files."""
    word = WORDS[row % 14 % 11]
    return f"the {word} of number {row} it is said is a {word}"


def labelled_texts(dataset):
    """Return classes and texts of the training rows, sorted."""
    return sorted(zip(dataset.labels().train.tolist(), texts(dataset), strict=True))


@pytest.fixture
def raw(tmp_path):
    return write_dbpedia(tmp_path / "raw")


def texts(dataset, part="train"):
    """Return the texts as decoded from the ids, "?" for an unknown word."""
    table, encoding = dataset.party("text"), dataset.encoding("text").text
    source = getattr(table, part)
    (ids,) = source.gather(np.arange(len(source)))
    return [" ".join("?" if word == 1 else encoding.words[word - 2] for word in row if word) for row in ids.tolist()]


def test_the_published_files_keep_their_split_classes_and_texts(raw):
    dataset = load("dbpedia", path=raw, options=PLAIN | {"length": 40, "min_count": 1})
    assert (dataset.parties, dataset.label_party) == (("text",), "label")
    assert (dataset.rows("train"), dataset.rows("test")) == (140, 28)
    assert dataset.class_names == CLASSES
    assert labelled_texts(dataset) == sorted((row % 14, words(row)) for row in range(140))
    dataset.verify()


def test_the_order_of_the_rows_depends_on_their_texts_and_not_on_the_file(raw):
    before = load("dbpedia", path=raw, options=PLAIN)
    records = sorted(csv.reader((raw / "train.csv").open(newline="")))
    assert [record[0] for record in records][:10] == ["1"] * 10
    with (raw / "train.csv").open("w", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(records)
    after = load("dbpedia", path=raw, options=PLAIN)
    assert after.folder != before.folder
    assert after.alignment == before.alignment
    assert not (after.folder / "ids").exists()  # the label party could check guesses of a text by its digest
    assert texts(after) == texts(before)
    assert np.array_equal(after.labels().train, before.labels().train)
    assert len(np.unique(after.labels().train[:30])) > 7


def test_plain_and_gzipped_files_are_the_same(raw, tmp_path):
    zipped = write_dbpedia(tmp_path / "zipped", ending=".gz")
    one, two = (load("dbpedia", path=path, options=PLAIN) for path in (raw, zipped))
    assert texts(one) == texts(two)
    assert one.alignment == two.alignment


def test_the_vocabulary_comes_from_training_rows_alone(raw):
    dataset = load("dbpedia", path=raw, options=PLAIN | {"length": 40, "min_count": 1})
    words = set(dataset.encoding("text").text.words)
    assert "139" in words
    assert "1003" not in words  # only in the test file
    assert all("?" in text.split() for text in texts(dataset, "test"))


def test_titles_are_left_out_unless_asked_for(raw):
    assert not any("title" in text for text in texts(load("dbpedia", path=raw, options=PLAIN | {"min_count": 1})))
    dataset = load("dbpedia", path=raw, options=PLAIN | {"titles": True, "min_count": 1})
    assert "title3 the athlete of number 3 it is said is a athlete" in texts(dataset)


def test_new_rows_need_the_column_of_the_texts(raw, tmp_path):
    dataset = load("dbpedia", path=raw, options=PLAIN)
    column = dataset.encoding("text").text.name
    (tmp_path / "new.csv").write_text(f"id,{column}\n1,the athlete of a village\n")
    assert len(new_rows(tmp_path / "new.csv", dataset).features("text").source) == 1
    (tmp_path / "new.csv").write_text("id,words\n1,the athlete of a village\n")
    with pytest.raises(DataError, match=f"has no column '{column}'"):
        new_rows(tmp_path / "new.csv", dataset).features("text")


def test_vectors_of_the_vocabulary_are_stored_with_the_text_party_only(raw, tmp_path):
    glove = tmp_path / "glove.txt"
    glove.write_text(glove_lines(("the", *WORDS)))
    dataset = prepare("dbpedia", source=raw, out=tmp_path / "out", options=PLAIN | {"vectors": str(glove)})
    spec = dataset.party("text").spec
    assert spec.vectors.shape == (spec.vocabulary, 3)
    assert spec.vectors[dataset.encoding("text").text.words.index("the") + 2].tolist() == pytest.approx([1, 1.1, 1.2])
    assert not spec.vectors[:2].any()
    dataset.verify()
    words = [
        path for path in (tmp_path / "out").rglob("*") if path.is_file() and b"athlete" in path.read_bytes().lower()
    ]
    assert {path.relative_to(tmp_path / "out").parts[0] for path in words} == {"text", "labels"}
    classes = (tmp_path / "out" / "labels" / "labels.json").read_text()
    assert "village" not in classes  # the name of a class, Village, and no word of a text
    shutil.rmtree(tmp_path / "out" / "text")
    assert open_dataset(tmp_path / "out").labels().classes == 14


def test_damaged_vectors_are_noticed(raw, tmp_path):
    glove = tmp_path / "glove.txt"
    glove.write_text(glove_lines(("the", *WORDS)))
    dataset = prepare("dbpedia", source=raw, out=tmp_path / "out", options=PLAIN | {"vectors": str(glove)})
    path = tmp_path / "out" / "text" / "vectors.npy"
    array = np.load(path)
    np.save(path, array + 1)
    with pytest.raises(DataError, match=r"vectors\.npy is not as it was prepared"):
        dataset.verify()
    np.save(path, array[1:])
    with pytest.raises(DataError, match=r"vectors\.npy holds float32"):
        dataset.party("text")


def test_other_vectors_are_another_entry_of_the_cache(raw, tmp_path):
    glove = tmp_path / "glove.txt"
    glove.write_text(glove_lines(("the",)))
    one = load("dbpedia", path=raw, options=PLAIN | {"vectors": str(glove)})
    glove.write_text(glove_lines(("of", "the")))
    two = load("dbpedia", path=raw, options=PLAIN | {"vectors": str(glove)})
    assert one.folder != two.folder


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('15,"T"," x"\n', r"train\.csv, line 3: the class is '15', allowed are 1 to 14"),
        ('0,"T"," x"\n', "line 3: the class is '0'"),
        ('²,"T"," x"\n', "line 3: the class is '²'"),
        ('1," x"\n', r"line 3: 3 fields are needed \(class, title, content\), given 2"),
        ("\n", "line 3: 3 fields are needed .* given 0"),
        ('1,"T"," x\n', "line 3: unexpected end of data"),
        ('1,"T"," x" y\n', "line 3: ',' expected after '\"'"),
        ('1,"T","' + "x" * 200_000 + '"\n', "line 3: field larger than field limit"),
        ('1,"T","' + "x" * 2_000_000 + '"\n', "line 3 is longer than 1,048,576 characters"),
    ],
)
def test_an_invalid_record_is_named_by_its_line(raw, line, text):
    (raw / "train.csv").write_text(dbpedia_text(1) + line, encoding="utf8")
    with pytest.raises(DataError, match=text):
        load("dbpedia", path=raw, options=PLAIN)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (
            dbpedia_text(500).encode() + b'1,"T"," \xff"\n',
            ": line 1001 is no text in UTF-8; convert the file to UTF-8$",
        ),
        (dbpedia_text(5).encode("utf-16"), " is text in UTF-16; convert it to UTF-8$"),
        (gzip.compress(dbpedia_text(50).encode())[:-20], " cannot be read"),
    ],
    ids=["one line", "UTF-16", "cut"],  # without these the ID of the archive would contain the time
)
def test_bytes_that_are_no_text_and_a_cut_archive_are_refused(raw, content, text):
    (raw / "train.csv").write_bytes(content)
    with pytest.raises(DataError, match=rf"train\.csv{text}"):
        load("dbpedia", path=raw, options=PLAIN)


def test_a_byte_order_mark_is_no_part_of_the_first_class(raw):
    plain = load("dbpedia", path=raw, options=PLAIN)
    path = raw / "train.csv"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert labelled_texts(load("dbpedia", path=raw, options=PLAIN)) == labelled_texts(plain)


def test_what_is_missing_is_named(raw, monkeypatch):
    with pytest.raises(DataError, match=r"no package ships dbpedia: .*name its folder"):
        load("dbpedia")
    with pytest.raises(DataError, match=r"no package ships dbpedia-5000: .*; given "):
        load("dbpedia-5000", path=raw)
    (raw / "test.csv").unlink()
    with pytest.raises(DataError, match=r"holds neither test\.csv nor test\.csv\.gz"):
        load("dbpedia", path=raw)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    write_dbpedia(raw)
    with pytest.raises(DataError, match=r"pip install 'flower-vfl\[text\]'"):
        load("dbpedia", path=raw)
    advice = {entry.name: entry.advice for entry in available()}
    assert "name its folder as data.path; pip install 'flower-vfl[text]'" in advice["dbpedia"]


def test_a_file_without_rows_is_refused(raw):
    (raw / "test.csv").write_text("")
    with pytest.raises(DataError, match=r"test\.csv is empty$"):
        load("dbpedia", path=raw, options=PLAIN)


def test_options_that_leave_no_word_are_refused(raw):
    with pytest.raises(DataError, match=r"no word of the training rows occurs 1000 times"):
        load("dbpedia", path=raw, options=PLAIN | {"min_count": 1000})
    with pytest.raises(ConfigError, match="option length of dbpedia"):
        load("dbpedia", path=raw, options={"length": 2})


def test_the_5000_rows_get_the_published_classes_and_a_test_part_of_their_own(tmp_path):
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(gzip.compress(dbpedia_text(400, titles=False).encode()))
    dataset = load("dbpedia-5000", path=path, options=PLAIN | {"length": 40, "min_count": 1})
    assert dataset.rows("train") + dataset.rows("test") == 400
    assert 40 < dataset.rows("test") < 130
    assert not set(texts(dataset)) & set(texts(dataset, "test"))
    assert sorted(PERMUTED) == sorted(CLASSES)
    assert set(labelled_texts(dataset)) < {(CLASSES.index(PERMUTED[row % 14]), words(row)) for row in range(400)}
    again = load("dbpedia-5000", path=path, options=PLAIN | {"split_seed": 1})
    assert again.alignment != dataset.alignment


@pytest.mark.skipif(not REAL.is_file(), reason="set FLOWER_VFL_TEST_DATA to a folder with dbpedia_5000rows.csv.gz")
def test_the_real_5000_rows_have_the_classes_that_their_words_indicate():
    dataset = load("dbpedia-5000", path=REAL, options={"vectors": "none"})
    assert dataset.rows("train") + dataset.rows("test") == 5000
    found = dict(zip(CLASSES, [[] for _ in CLASSES], strict=True))
    for label, text in zip(dataset.labels().train, texts(dataset), strict=True):
        found[CLASSES[label]].append(set(text.split()))
    typical_words = {
        **{"Album": "album", "Film": "film", "Village": "village", "Company": "company", "Plant": "plant"},
        **{"Animal": "moth", "EducationalInstitution": "school", "Athlete": "played", "Building": "building"},
        **{"MeanOfTransportation": "aircraft", "OfficeHolder": "politician", "WrittenWork": "novel"},
        **{"NaturalPlace": "river", "Artist": "artist"},
    }
    for name, word in typical_words.items():
        share = {kind: np.mean([word in words for words in rows]) for kind, rows in found.items()}
        assert share[name] == max(share.values()), (name, share)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_texts(tmp_path):
    code = """
import sys
from pathlib import Path
from flower_vfl.data import prepare
prepare("dbpedia", source=Path(sys.argv[1]), out=Path(sys.argv[2]), options={"vectors": "none", "length": 8})
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""

    def kilobytes(rows):
        raw = tmp_path / f"raw-{rows}"
        raw.mkdir()
        filler = " ".join(WORDS * 60)  # 4 KiB a text
        for part, count in (("train", rows), ("test", 10)):
            with (raw / f"{part}.csv").open("w") as file:
                for row in range(count):
                    file.write(f'{row % 14 + 1},"Title"," {filler}"\n')
        command = [sys.executable, "-c", code, str(raw), str(tmp_path / str(rows))]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])

    # Of 80 MB of further texts, only IDs, labels and eight words each are kept.
    assert kilobytes(22_000) - kilobytes(2_000) < 20_000
