from collections import Counter

import numpy as np
import pytest

from flower_vfl.data.encoding.encoding import PartyEncoding
from flower_vfl.data.encoding.text import TextEncoding, count_words, split_words
from flower_vfl.errors import DataError


def fitted(texts, **options):
    counts = Counter()
    for line in texts:
        count_words(counts, line, "here")
    return TextEncoding.fit("text", counts, **{"length": 4, "words": 100, "min_count": 1} | options)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("The cat, the CAT.", ["the", "cat", "the", "cat"]),
        ("snake_case and-hyphen", ["snake", "case", "and", "hyphen"]),
        ("Ärger im Łódź 東京", ["ärger", "im", "łódź", "東京"]),
        ("\x00\ufffd ... !", []),
        ("", []),
    ],
)
def test_words_are_runs_of_letters_and_digits_of_any_script_in_lower_case(given, words):
    assert split_words(given) == words


def test_the_vocabulary_is_sorted_by_frequency_then_by_character_and_cut():
    texts = ["b b a", "c a b", "d"]
    assert fitted(texts).words == ("b", "a", "c", "d")
    assert fitted(texts, words=2).words == ("b", "a")
    assert fitted(texts, min_count=2).words == ("b", "a")
    assert fitted(reversed(texts)).words == fitted(texts).words


def test_texts_are_cut_and_filled_up_and_unseen_words_share_an_id():
    encoding = fitted(["b b a"])
    ids = encoding.apply(["a b new b a", "B", "", "new other"])
    assert ids.tolist() == [[3, 2, 1, 2], [2, 0, 0, 0], [0, 0, 0, 0], [1, 1, 0, 0]]
    assert ids.dtype == np.int32
    assert encoding.vocabulary == 4


def test_the_encoding_is_kept_beside_the_data_and_encodes_new_texts_equally(tmp_path):
    encoding = PartyEncoding((), (), fitted(["größe b b"]))
    encoding.write(tmp_path / "encoding.json")
    again = PartyEncoding.read(tmp_path / "encoding.json")
    assert again == encoding
    assert again.columns == ("text",)
    assert again.text.apply(["b größe c"]).tolist() == encoding.text.apply(["b größe c"]).tolist()


def test_an_encoding_of_texts_that_was_damaged_is_refused(tmp_path):
    (tmp_path / "encoding.json").write_text('{"numeric": [], "categorical": [], "text": {"name": "t", "words": []}}')
    with pytest.raises(DataError, match="no encoding of columns"):
        PartyEncoding.read(tmp_path / "encoding.json")


def test_more_different_words_than_a_language_has_are_refused(monkeypatch):
    monkeypatch.setattr("flower_vfl.data.encoding.text.MOST_WORDS", 3)
    with pytest.raises(DataError, match="here holds more than 3 different words"):
        fitted(["a b", "c d"])
