import numpy as np
import pytest

from flower_vfl.data.sources import wordnet
from flower_vfl.data.sources.catalog import available, load
from flower_vfl.errors import DataError
from tests.data.text_files import wordnet_text

PLAIN = {"vectors": "none", "length": 8, "min_count": 1}


@pytest.fixture
def raw(tmp_path):
    folder = tmp_path / "raw"
    folder.mkdir()
    (folder / "data.noun").write_text(wordnet_text(520))
    return folder


def test_glosses_go_to_one_party_and_kinds_to_the_other(raw):
    dataset = load("wordnet-glosses", path=raw, options=PLAIN)
    assert (dataset.parties, dataset.label_party, dataset.classes) == (("text",), "label", 26)
    assert dataset.rows("train") + dataset.rows("test") == 520
    words = dataset.encoding("text").text.words
    assert set(words) == {"thing", "of", "a", "b", *(f"kind{kind}" for kind in range(3, 29))}  # no noun
    labels = dataset.labels().train
    (ids,) = dataset.party("text").train.gather(np.arange(3))
    assert [words[word - 2] for word in ids[:, 2]] == [f"kind{label + 3}" for label in labels[:3]]
    assert dataset.class_names[0] == "Tops"
    assert dataset.class_names[25] == "time"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("00000001 29 v 01 breathe 0 000 | draw air\n", "line 3 is no noun"),
        ("00000001 02 n 01 thing 0 000 | text\n", "line 3 is no noun"),
        ("00000001 04 n 01 thing 0 000\n", "line 3 is no noun"),
        ("\n", "line 3 is no noun"),
    ],
)
def test_a_line_that_is_no_noun_is_named(raw, line, text):
    (raw / "data.noun").write_text(wordnet_text(1) + line)
    with pytest.raises(DataError, match=text):
        load("wordnet-glosses", path=raw, options=PLAIN)


def test_the_debian_package_is_advised(tmp_path, monkeypatch):
    monkeypatch.setattr(wordnet, "PACKAGED", tmp_path / "absent")
    with pytest.raises(DataError, match="apt-get install wordnet-base"):
        load("wordnet-glosses")
    assert "apt-get install wordnet-base" in next(
        entry.advice for entry in available() if entry.name == "wordnet-glosses"
    )


@pytest.mark.skipif(not wordnet.PACKAGED.is_dir(), reason="needs the Debian package wordnet-base")
def test_the_package_has_82115_nouns_of_26_kinds():
    dataset = load("wordnet-glosses", options={"vectors": "none"})
    labels = dataset.labels()
    assert len(labels.train) + len(labels.test) == 82_115
    assert len(labels.train) == wordnet.WordnetGlosses.rows
    counts = np.bincount(np.concatenate([labels.train, labels.test]), minlength=26)
    assert counts[wordnet.CLASSES.index("Tops")] == 51
    assert counts.min() > 40
