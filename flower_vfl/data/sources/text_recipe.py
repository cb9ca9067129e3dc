"""Base class of text data sets: one party has the texts, the label party has labels and nothing else."""

from __future__ import annotations

import hashlib
import io
import logging
from abc import abstractmethod
from array import array
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from flower_vfl.data.encoding.labels import EncodedLabels
from flower_vfl.data.encoding.text import RESERVED, TextEncoding, count_words
from flower_vfl.data.formats.raw import check_encoding, opened
from flower_vfl.data.formats.vectors import GLOVE, INSTALL, packaged_glove, read_vectors, vector_files
from flower_vfl.data.sources.recipe import Options, Progress, Recipe
from flower_vfl.data.store.builder import Builder
from flower_vfl.data.store.dataset import PARTS, Part
from flower_vfl.errors import DataError

_log = logging.getLogger(__name__)

LONGEST_LINE = 1_048_576
"""Largest number of characters of a line; a longer one is no text, and reading it whole could fill the memory."""

_DIGEST = 24


class TextOptions(Options):
    """Options of a data set of texts."""

    length: int = Field(96, ge=8, le=4096, description="words of a text; the rest of a longer one is cut off")
    words: int = Field(50_000, ge=1, le=5_000_000, description="largest vocabulary: the most frequent training words")
    min_count: int = Field(2, ge=1, description="words that occur less often share the id of unseen words")
    vectors: str = Field(
        GLOVE, min_length=1, description='"glove": 6B 50d, "none", or the path of a file such as glove.6B.50d.txt'
    )


class TextRow(NamedTuple):
    """One example.

    Attributes
    ----------
    label : int
        Class, from 0.
    text : str
        Text that the text party holds.
    """

    label: int
    text: str


class TextRecipe(Recipe):
    """Base recipe of texts at party "text" and labels at party "label"; a subclass implements the reading of rows.

    Rows are read twice, first to count words and then to encode, so that memory holds the vocabulary, the labels and a
    digest of each text, but never the texts.

    Rows are sorted by the digest of their text: if a file is sorted by class, the position of a row would reveal its
    class to the party with the texts. They are numbered and have no IDs, which the label party would receive: with
    digests as IDs it could check guesses of a text.
    """

    options: ClassVar[type[Options]] = TextOptions
    class_names: ClassVar[tuple[str, ...]]

    @abstractmethod
    def read(self, part: Part, source: Path | None, options: Any) -> Iterator[TextRow]:
        """Yield the rows of a part, each time in the same order."""

    @abstractmethod
    def files(self, source: Path | None, options: Any) -> list[Path]:
        """Return the raw files of the texts."""

    @abstractmethod
    def files_advice(self) -> str:
        """Return the steps to get the raw files; empty when they are here."""

    def advice(self) -> str:
        """Return the steps to get the texts and the word vectors."""
        return "; ".join(filter(None, [self.files_advice(), "" if packaged_glove() else INSTALL]))

    def inputs(self, source: Path | None, options: TextOptions) -> list[Path]:
        """Return the raw files and those of the word vectors."""
        return [*self.files(source, options), *vector_files(options.vectors)]

    def write(self, builder: Builder, source: Path | None, options: TextOptions, progress: Progress) -> None:
        """Count the words, then encode the texts."""
        paths = self.inputs(source, options)
        rows, labels = dict[Part, NDArray[np.int64]](), list[NDArray[np.int64]]()
        counts, alignment = Counter[str](), hashlib.sha256()
        for part in PARTS:
            digests, classes = bytearray(), array("q")
            for row in self.read(part, source, options):
                digests += hashlib.blake2b(row.text.encode(), digest_size=_DIGEST // 2).hexdigest().encode()
                classes.append(row.label)
                if part == "train":
                    count_words(counts, row.text, str(paths[0]))
            found = np.frombuffer(digests, f"S{_DIGEST}")
            order = np.argsort(found, kind="stable")
            alignment.update(f"{part} {len(order)}\n".encode() + found[order].tobytes())
            labels.append(np.frombuffer(classes, np.int64)[order])
            rows[part] = np.argsort(order)
            progress(0.3 if part == "train" else 0.4)
        builder.align_numbered({part: len(rows[part]) for part in PARTS}, alignment.hexdigest())
        encoding = self._fit(counts, options, str(paths[0]))
        vectors = read_vectors(options.vectors, encoding.words, RESERVED)
        progress(0.6)
        texts = {part: (row.text for row in self.read(part, source, options)) for part in PARTS}
        builder.add_texts("text", encoding, texts, rows, vectors)
        builder.add_labels(EncodedLabels(labels[0], labels[1], self.class_names))
        self.finish(builder, options, label_party="label", source=", ".join(path.name for path in paths))

    def _fit(self, counts: Counter[str], options: TextOptions, file: str) -> TextEncoding:
        encoding = TextEncoding.fit(
            "text", counts, length=options.length, words=options.words, min_count=options.min_count
        )
        if not encoding.words:
            raise DataError(f"{file}: no word of the training rows occurs {options.min_count} times (option min_count)")
        _log.info(
            "%s: %d different words in the training rows, %d of them kept; they are %.1f %% of the running words",
            *(self.name, len(counts), len(encoding.words)),
            100 * sum(counts[word] for word in encoding.words) / counts.total(),
        )
        return encoding


@contextmanager
def reading(path: Path) -> Iterator[IO[str]]:
    """Open a text file in UTF-8, unpacked if its content is gzipped.

    Raises
    ------
    DataError
        When the file cannot be read, is no valid gzip file, or holds bytes that are no UTF-8.
    """
    try:
        with opened(path) as file, io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
            yield text
    except UnicodeDecodeError:
        with opened(path) as file:
            check_encoding(path, file)
        raise


def lines(file: IO[str], path: Path) -> Iterator[str]:
    """Yield the lines of a file.

    Raises
    ------
    DataError
        When a line is longer than `LONGEST_LINE`.
    """
    number = 0
    while line := file.readline(LONGEST_LINE):
        number += 1
        if len(line) == LONGEST_LINE and not line.endswith("\n"):
            raise DataError(f"{path}, line {number} is longer than {LONGEST_LINE:,} characters: this is no text")
        yield line
