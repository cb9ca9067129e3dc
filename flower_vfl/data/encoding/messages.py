"""Words of messages on a user's files: how an option is set, and which rows are meant."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence

_BARE_KEY = re.compile("[A-Za-z0-9_-]+")
"""Key that TOML takes without quotes."""
_TEXT_TABLE = re.compile(r"[.](csv|tsv|txt)([.]gz)?$", re.IGNORECASE)
MOST_ROWS = 4
"""Largest number of rows in a message."""


def option_line(option: str, value: object) -> str:
    """Return an option of the files, or an entry of one (`dtype.COLUMN`), as a line of TOML.

    Examples
    --------
    >>> print(option_line("dtype.Length (mm)", "category"))
    dtype."Length (mm)" = "category"
    """
    parts = option.split(".", maxsplit=1)
    key = ".".join(part if _BARE_KEY.fullmatch(part) else json.dumps(part, ensure_ascii=False) for part in parts)
    return f"{key} = {json.dumps(value, ensure_ascii=False)}"


def option_argument(option: str, value: object) -> str:
    """Return an option of the files as an argument of `init` and `data prepare`, quoted for a shell.

    Examples
    --------
    >>> print(option_argument("dtype.Length (mm)", "category"))
    --set 'dtype.Length (mm)=category'
    """
    return f"--set {shlex.quote(f'{option}={value if isinstance(value, str) else json.dumps(value)}')}"


def set_options(*options: tuple[str, object]) -> str:
    """Return alternative options of the files, with the places where they are set.

    Examples
    --------
    >>> print(set_options(("unlabelled", "drop")))
    unlabelled = "drop" below [data.options] (in init and data prepare --set unlabelled=drop)
    >>> print(set_options(("missing_values", ["n/v"]), ("dtype.x", "category")))
    missing_values = ["n/v"] or dtype.x = "category" below [data.options] (in init and data prepare --set OPTION=VALUE)
    """
    argument = option_argument(*options[0]) if len(options) == 1 else "--set OPTION=VALUE"
    lines = " or ".join(option_line(*option) for option in options)
    return f"{lines} below [data.options] (in init and data prepare {argument})"


def named_rows(file: str, places: Sequence[int]) -> str:
    """Return the first few of some rows by their number, from 1; in a text table they are counted below its header.

    Lines of the file are others: a value may hold line breaks, and empty lines are no rows.

    Examples
    --------
    >>> named_rows("a.csv", [5]), named_rows("a.npz", [0, 1, 2, 3, 9])
    ('row 6 below the header', 'rows 1, 2, 3, 4, ...')
    """
    counted = " below the header" if _TEXT_TABLE.search(file) else ""
    return f"{_numbered('row', places)}{counted}"


def named_lines(places: Sequence[int]) -> str:
    """Return the first few of some lines of a text by their number, from 1."""
    return _numbered("line", places)


def _numbered(word: str, places: Sequence[int]) -> str:
    numbers = ", ".join(str(place + 1) for place in places[:MOST_ROWS])
    return f"{word}{'s' if len(places) > 1 else ''} {numbers}{', ...' if len(places) > MOST_ROWS else ''}"
