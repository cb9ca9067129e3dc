from collections import Counter

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from flower_vfl.data.clicks import fit
from flower_vfl.data.clicks.fit import KeyCounter, Vocabulary

keys = st.lists(st.integers(0, 9) | st.integers(0, 2**32 - 1), max_size=40)


@given(st.lists(keys, max_size=6), st.integers(1, 3))
def test_keys_that_come_in_pieces_are_counted_exactly(pieces, least):
    pending, fit._PENDING = fit._PENDING, 5
    try:
        counter = KeyCounter()
        for piece in pieces:
            counter.add(np.array(piece, np.uint32))
        counts = Counter(key for piece in pieces for key in piece)
        assert counter.at_least(least).tolist() == sorted(key for key, count in counts.items() if count >= least)
    finally:
        fit._PENDING = pending


@given(keys, st.lists(st.none() | st.integers(0, 12) | st.integers(0, 2**32 - 1), max_size=40), st.booleans())
def test_ids_are_those_that_the_vocabulary_of_texts_gives(known, requested, missing):
    vocabulary = Vocabulary("C1", "hex", np.unique(np.array(known, np.uint32)), missing)
    texts = pa.array(["" if key is None else f"{key:08x}" for key in requested], pa.string())
    found = vocabulary.ids(pa.array(requested, pa.uint32()))
    assert found.dtype == np.int32
    assert found.tolist() == vocabulary.encoding().apply(texts).tolist()
    assert vocabulary.encoding().cardinality == len(set(known)) + missing + 1
