"""Texts as word ids: lower-case words, a vocabulary of the training rows only, one length for all."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flower_vfl.errors import DataError

UNSEEN, RESERVED = 1, 2
"""Id of words outside the vocabulary, and of its first word; 0 pads short texts."""

MOST_WORDS = 5_000_000
"""Largest number of different words; counting more would fill the memory."""

_WORD = re.compile(r"[^\W_]+")


def split_words(text: str) -> list[str]:
    """Return the lower-case words of a text: runs of letters and digits of any script; all else separates.

    Examples
    --------
    >>> split_words("Abbott's E. D. Abbott Ltd (1987-90) — Zürich")
    ['abbott', 's', 'e', 'd', 'abbott', 'ltd', '1987', '90', 'zürich']
    """
    return _WORD.findall(text.lower())


def count_words(counts: Counter[str], text: str, where: str) -> None:
    """Add the words of a text to the counts.

    Raises
    ------
    DataError
        When there are more than `MOST_WORDS` different words.
    """
    counts.update(split_words(text))
    if len(counts) > MOST_WORDS:
        raise DataError(f"{where} holds more than {MOST_WORDS:,} different words; are these texts?")


@dataclass(frozen=True)
class TextEncoding:
    """A column of texts: word `words[i]` becomes i + 2, any other word 1, and 0 pads short texts.

    Parameters
    ----------
    name : str
        Name of the column.
    words : tuple of str
        The vocabulary, from training rows, most frequent first.
    length : int
        Number of words of a text; longer texts are cut.
    """

    name: str
    words: tuple[str, ...]
    length: int

    @classmethod
    def fit(cls, name: str, counts: Counter[str], *, length: int, words: int, min_count: int) -> TextEncoding:
        """Return the encoding with the `words` most frequent of the words that occur `min_count` times or more."""
        known = sorted((-count, word) for word, count in counts.items() if count >= min_count)
        return cls(name, tuple(word for _, word in known[:words]), length)

    @property
    def vocabulary(self) -> int:
        """Number of ids, padding and unseen words included."""
        return len(self.words) + RESERVED

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words, RESERVED)}

    def apply(self, texts: Sequence[str]) -> NDArray[np.int32]:
        """Encode (N,) texts to ids (N, length)."""
        ids = np.zeros((len(texts), self.length), np.int32)
        for row, text in enumerate(texts):
            found = [self._ids.get(word, UNSEEN) for word in split_words(text)[: self.length]]
            ids[row, : len(found)] = found
        return ids
