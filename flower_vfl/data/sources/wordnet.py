"""Glosses of WordNet's nouns, 26 classes: a stand-in for DBpedia that a Debian package ships."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from flower_vfl.data.encoding.ids import in_test_set
from flower_vfl.data.sources.recipe import Options, SplitOptions
from flower_vfl.data.sources.text_recipe import TextOptions, TextRecipe, TextRow, lines, reading
from flower_vfl.data.store.dataset import Part
from flower_vfl.errors import DataError

PACKAGED = Path("/usr/share/wordnet")
"""Folder of WordNet in the Debian package wordnet-base."""

CLASSES = (
    *("Tops", "act", "animal", "artifact", "attribute", "body", "cognition", "communication", "event", "feeling"),
    *("food", "group", "location", "motive", "object", "person", "phenomenon", "plant", "possession", "process"),
    *("quantity", "relation", "shape", "state", "substance", "time"),
)
"""Names of the lexicographer files 3, 4, ... of nouns."""

_FIRST = 3
_FILE = "data.noun"
_SYNSET = re.compile(r"(\d{8}) (\d\d) n [0-9a-f]{2} [^|]*\| (.*)", re.ASCII | re.DOTALL)


class WordnetOptions(TextOptions, SplitOptions):
    """Options of wordnet-glosses."""


class WordnetGlosses(TextRecipe):
    """Recipe of definition and examples of a noun at one party, its kind at the other; the noun itself is not used."""

    name: ClassVar[str] = "wordnet-glosses"
    description: ClassVar[str] = "82,115 definitions of nouns, 26 kinds of nouns; texts at one party"
    licence: ClassVar[str] = "WordNet 3.0 (Princeton University)"
    rows: ClassVar[int | None] = 65_802
    options: ClassVar[type[Options]] = WordnetOptions
    class_names: ClassVar[tuple[str, ...]] = CLASSES

    def files_advice(self) -> str:
        """Return the install command when the Debian package is absent."""
        return "" if (PACKAGED / _FILE).is_file() else "apt-get install wordnet-base"

    def files(self, source: Path | None, options: WordnetOptions) -> list[Path]:
        """Return the one file."""
        path = (source or PACKAGED) / _FILE
        if not path.is_file():
            raise DataError(
                f"there is no {path}: run 'apt-get install wordnet-base', or name a folder that holds {_FILE}"
            )
        return [path]

    def read(self, part: Part, source: Path | None, options: WordnetOptions) -> Iterator[TextRow]:
        """Read the file and yield the rows of a part."""
        (path,) = self.files(source, options)
        with reading(path) as file:
            for number, line in enumerate(lines(file, path), 1):
                if line.startswith("  "):  # the licence, at the top
                    continue
                synset = _SYNSET.match(line)
                label = int(synset[2]) - _FIRST if synset else -1
                if synset is None or not 0 <= label < len(CLASSES):
                    raise DataError(f"{path}, line {number} is no noun of WordNet 3.0: {line[:40]!r}")
                tested = bool(in_test_set([synset[1]], options.test_fraction, options.split_seed)[0])
                if tested == (part == "test"):
                    yield TextRow(label, synset[3])
