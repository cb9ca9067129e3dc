"""A user's own files as tables: CSV, with every column as text, and Parquet."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import logging
import re
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from flower_vfl.data.encoding.messages import named_rows, set_options
from flower_vfl.data.encoding.values import require_columns
from flower_vfl.data.formats.raw import GZIP, SEPARATORS, check_encoding, opened
from flower_vfl.errors import ConfigError, DataError

if TYPE_CHECKING:
    from _csv import Reader

_log = logging.getLogger(__name__)

_BLOCK = 2**20
_TABS = ("tab", "\\t", "\t")
_QUOTES = "a value that holds the delimiter needs quotes"
_FEWER = "complete the row with a delimiter for each missing value, or quote a value that has a line break"
_SEPARATOR_LINE, _LONGEST_SEPARATOR_LINE = re.compile(r'"?sep=([^"\n])"?\n', re.IGNORECASE), 16
"""First line by which Excel names the delimiter, and the number of characters that are read to find it."""

_LONGEST_VALUE, _LARGEST_BLOCK = 2**24, 2**27
"""Largest number of characters of a value, and of bytes that Arrow reads as one block, which holds a row at least."""

_limit_lock = threading.RLock()
_VIEWS = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


@dataclass(frozen=True)
class Dialect:
    """Syntax of the text of a table.

    Parameters
    ----------
    delimiter : str
        One character, or "tab"; "" for tabs in files called .tsv and commas in others, or for another one if that
        would leave the header a single column.
    encoding : str
        Python's name of the encoding; "" for UTF-8.
    trained : bool
        True for new rows, which need the syntax of the training file: no option changes it.
    party : str
        Party of the file, whose own option messages name; "" for the option of all files.
    first_line : bool
        True for a file whose first line is `sep=;` or the like, which is no row: Excel writes the delimiter so.
    """

    delimiter: str = ""
    encoding: str = ""
    trained: bool = False
    party: str = ""
    first_line: bool = False

    def __post_init__(self) -> None:
        if len(self.delimiter) > 1 and self.delimiter not in _TABS:
            raise ConfigError(f"option delimiter of files: one character or 'tab' is needed, given {self.delimiter!r}")
        try:
            codecs.lookup(self.encoding or "utf-8")
        except LookupError:
            raise ConfigError(
                f"option encoding of files: there is no encoding {self.encoding!r}; cp1252, latin-1 and utf-16 are some"
            ) from None

    def between(self, path: Path) -> str:
        """Return the separator of the fields of a file."""
        usual = "\t" if _kind(path) == ".tsv" else ","
        return "\t" if self.delimiter in _TABS else self.delimiter or usual

    def cure(self, option: str, value: str) -> str:
        """Return the option that reads a file whose delimiter or encoding is another one, for messages."""
        return f"or set {set_options((f'{option}.{self.party}' if self.party else option, value))}"

    @property
    def other_encoding(self) -> str:
        """The way to read a file that has another encoding than the other files, for messages."""
        if self.trained:
            return f"save it in {self.encoding}"
        return f"files of several encodings have one each, as in encoding.{self.party or 'bank'}"


PLAIN_DIALECT = Dialect()
"""Dialect of texts in UTF-8 whose separator follows from the file's name."""


def dialect_of(options: Mapping[str, Any], key: str, *, trained: bool = False) -> Dialect:
    """Return the dialect of a party's file, from the options `delimiter` and `encoding`: texts, or texts by party.

    If `key` is "", one file has the columns of all parties: its dialect is what their files have in common.
    """
    delimiter, encoding = (_of_party(options.get(name, ""), options, key) for name in ("delimiter", "encoding"))
    return Dialect(delimiter, encoding, trained, key)


def _of_party(given: Any, options: Mapping[str, Any], key: str) -> str:
    if not isinstance(given, Mapping):
        return str(given)
    values = {str(given.get(party, "")) for party in ([key] if key else options.get("files", {}))}
    return values.pop() if len(values) == 1 else ""


def read_table(path: Path, only: str = "", dialect: Dialect = PLAIN_DIALECT) -> pa.Table:
    """Read a CSV (.csv, .tsv, .txt, each also .gz), every column as text, or a Parquet file.

    Parameters
    ----------
    path : Path
        The file.
    only : str
        The only column to read; "" for all.
    dialect : Dialect
        Syntax of a CSV.

    Raises
    ------
    DataError
        When the file is neither, is empty, lacks the column, has a column name twice, or leaves a quote open.
    """
    dialect = _completed(path, dialect)
    if _is_utf8_too(path, dialect):
        _log.warning(
            "%s is read in %s, and it is text in UTF-8: letters outside of ASCII are read wrongly; %s",
            *(path, dialect.encoding, dialect.other_encoding),
        )
    header = read_header(path, dialect)
    require_columns(header, [only] if only else [], str(path))
    names = [only] if only else header.column_names
    try:
        table = _read_parquet(path, names) if _is_parquet(path) else _read_csv(path, names, dialect)
        table.validate(full=True)  # texts that are no UTF-8, for instance
    except (OSError, EOFError, zlib.error, UnicodeError, pa.ArrowException) as error:
        _check_encoding(path, dialect, error)
        # Arrow's message ends with the content of the wrong row: data, which messages do not repeat.
        words = re.sub("(?<=got )([0-9]+):.*", r"\1", str(error), flags=re.DOTALL)
        place = re.search("Row #([0-9]+)", words)
        number = f" ({named_rows(str(path), [int(place[1]) - 2 - dialect.first_line])})" if place else ""
        cure = _other_fields(words, dialect) if place else ""
        raise DataError(f"{path} cannot be read: {re.sub('Row #[0-9]+: ', '', words)}{number}{cure}") from None
    if not table.num_rows:
        raise DataError(f"{path} has no rows")
    return table


def _other_fields(words: str, dialect: Dialect) -> str:
    """Return what to do about a row with another number of fields than the header, from Arrow's words."""
    counts = re.search("Expected ([0-9]+) columns, got ([0-9]+)", words)
    cure = _FEWER if counts and int(counts[2]) < int(counts[1]) else _QUOTES
    return f"; {cure}{'' if dialect.trained else '; the option delimiter names another one'}"


def read_header(path: Path, dialect: Dialect = PLAIN_DIALECT) -> pa.Table:
    """Return the columns of a file, without rows; errors are those of `read_table`."""
    dialect = _completed(path, dialect)
    try:
        if _is_parquet(path):
            header = pq.read_schema(path).empty_table()
        elif _kind(path) in (".csv", ".tsv", ".txt"):
            names = [name.strip() for name in _names(path, dialect)]
            header = pa.schema([(name, pa.string()) for name in filter(None, names)]).empty_table()
        else:
            raise DataError(
                f"{path}: files end in .csv, .tsv, .txt (each also .gz), .parquet, .pq or .npz (numpy.savez of IDs and "
                "features); images lie in a folder"
            )
    except (OSError, EOFError, zlib.error, UnicodeError, pa.ArrowException) as error:
        _check_encoding(path, dialect, error)
        raise DataError(f"{path} cannot be read: {error}") from None
    except csv.Error as error:
        raise _stray_quote(path, 0, error) from None
    if not header.column_names:
        raise DataError(f"{path} is empty")
    _refuse_duplicates(header.column_names, path)
    if len(header.column_names) == 1 and dialect.delimiter and not dialect.first_line:
        _refuse_delimiter(header.column_names[0], path, dialect)
    return header


def _completed(path: Path, dialect: Dialect) -> Dialect:
    """Return the dialect of a file, completed from its beginning: a byte order mark, a line sep=;, the delimiter.

    Errors of reading are left to those who read on.
    """
    if _is_parquet(path):
        return dialect
    with suppress(OSError, EOFError, zlib.error, UnicodeError), _opened(path) as file:
        if dialect.encoding and file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8:
            dialect = replace(dialect, encoding="")
        file.seek(0)
        with io.TextIOWrapper(file, encoding=dialect.encoding or "utf-8-sig", errors="replace") as text:
            named = _SEPARATOR_LINE.fullmatch(text.readline(_LONGEST_SEPARATOR_LINE))
        if named:
            return replace(dialect, delimiter=named[1], first_line=True)
        if not dialect.delimiter and _width(path, dialect) < 2:
            others = (replace(dialect, delimiter=other) for other in SEPARATORS)
            return next((other for other in others if _width(path, other) > 1), dialect)
    return dialect


def _width(path: Path, dialect: Dialect) -> int:
    """Return the number of names in the header; 0 where its quotes end elsewhere than at a delimiter."""
    try:
        return len(_names(path, dialect))
    except csv.Error:
        return 0


def _names(path: Path, dialect: Dialect) -> list[str]:
    """Return the record of the header."""
    with _records(path, dialect) as records:
        return next(filter(None, records), [])


def _is_utf8_too(path: Path, dialect: Dialect) -> bool:
    """Return True if a text that is read in another encoding has letters in UTF-8, which few other texts look like."""
    if not dialect.encoding or codecs.lookup(dialect.encoding).name.startswith("utf-8") or _is_parquet(path):
        return False
    with suppress(OSError, EOFError, zlib.error, UnicodeDecodeError), _opened(path) as file:
        start = file.read(_BLOCK)
        return not codecs.getincrementaldecoder("utf-8")().decode(start).isascii()
    return False


def _kind(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def _is_parquet(path: Path) -> bool:
    return _kind(path) in (".parquet", ".pq")


def _check_encoding(path: Path, dialect: Dialect, error: Exception) -> None:
    """Refuse a file that could not be read if its encoding is the reason, or that it is gzipped."""
    if _is_parquet(path):
        return
    if dialect.encoding and isinstance(error, UnicodeError):
        raise DataError(
            f"{path} is no text in {dialect.encoding}, which the option encoding names ({error}); "
            f"{dialect.other_encoding}"
        ) from None
    if not dialect.encoding:
        try:
            with opened(path) as file:
                check_encoding(path, file)
        except DataError as reason:
            likely = "utf-16" if "UTF-16" in str(reason) else "cp1252"
            chosen = "UTF" in str(reason) and not dialect.trained
            cure = f"; {dialect.cure('encoding', likely)}" if chosen else ""
            raise DataError(f"{reason}{cure}") from None
    with path.open("rb") as file:
        if path.suffix != ".gz" and file.read(len(GZIP)) == GZIP:
            raise DataError(f"{path} is gzipped: let its name end in {path.suffix}.gz")


def _opened(path: Path) -> gzip.GzipFile | io.BufferedReader:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


@contextmanager
def _records(path: Path, dialect: Dialect) -> Iterator[Reader]:
    """Open a reader of the records of a CSV, the header first; an empty line is an empty record."""
    with (
        _long_values(),
        _opened(path) as file,
        io.TextIOWrapper(file, encoding=dialect.encoding or "utf-8-sig", newline="") as text,
    ):
        if dialect.first_line:
            text.readline()
        yield csv.reader(text, delimiter=dialect.between(path), strict=True)


@contextmanager
def _long_values() -> Iterator[None]:
    """Let Python's reader take long values; its limit is one of the whole process, and is put back."""
    with _limit_lock:
        usual = csv.field_size_limit(_LONGEST_VALUE)
        try:
            yield
        finally:
            csv.field_size_limit(usual)


def _refuse_stray_quotes(path: Path, dialect: Dialect) -> None:
    """Refuse a quote that is not closed in its value: Arrow reads all rows up to the next quote as one value."""
    with _opened(path) as file:
        if not any(b'"' in block for block in iter(partial(file.read, _BLOCK), b"")):
            return
    row = -1
    try:
        with _records(path, dialect) as records:
            for row, _ in enumerate(filter(None, records)):  # noqa: B007 - the last row is what is wanted
                pass
    except csv.Error as error:
        raise _stray_quote(path, row + 1, error) from None


def _stray_quote(path: Path, row: int, error: csv.Error) -> DataError:
    where = named_rows(str(path), [row - 1]) if row else "the header"
    if "field limit" in str(error):
        return DataError(
            f"{path}: in {where} a value has more than {_LONGEST_VALUE} characters, the most that are read; shorten it "
            "or, if a quote begins it that no quote ends, remove the quote"
        )
    return DataError(
        f"{path}: in {where} a quote begins a value, and no quote ends it before a delimiter or the end of the line; "
        f"remove the quote, or quote the value whole and write a quote inside it twice ({error})"
    )


def _read_parquet(path: Path, wanted: list[str]) -> pa.Table:
    table = pq.read_table(path, columns=wanted)
    for place, field in enumerate(table.schema):
        if field.type in _VIEWS:  # Arrow cannot take rows of these types
            table = table.set_column(place, field.name, table.column(place).cast(_VIEWS[field.type]))
    return table


def _read_csv(path: Path, wanted: list[str], dialect: Dialect) -> pa.Table:
    _refuse_stray_quotes(path, dialect)
    with _records(path, dialect) as records:
        written = next(filter(None, records))
        names = {name: name.strip() for name in written if name.strip() in wanted}
        if not any(records):
            raise DataError(f"{path} has no rows")
    unnamed = [str(place) for place, name in enumerate(written, start=1) if not name.strip()]
    if unnamed:
        _log.warning("%s: left out: column %s, which the header gives no name", path, ", ".join(unnamed))

    def read(*, threads: bool, block: int | None = None) -> pa.Table:
        return pa_csv.read_csv(
            path,
            read_options=pa_csv.ReadOptions(
                use_threads=threads,
                block_size=block,
                skip_rows=int(dialect.first_line),
                encoding=dialect.encoding or "utf8",
            ),
            parse_options=pa_csv.ParseOptions(delimiter=dialect.between(path), newlines_in_values=True),
            convert_options=pa_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), include_columns=list(names)
            ),
        ).rename_columns(list(names.values()))

    try:
        return read(threads=True)
    except pa.ArrowInvalid:
        # For rows longer than a block, and for the number of a wrong row, which several threads do not report.
        return read(threads=False, block=_LARGEST_BLOCK)


def _refuse_delimiter(name: str, path: Path, dialect: Dialect) -> None:
    """Refuse a file whose only column is the whole header, because its delimiter is not the one that was given."""
    own = dialect.between(path)
    found = next((other for other in SEPARATORS if other != own and other in name), None)
    if found:
        needed = SEPARATORS.get(own, repr(own))
        named = "tab" if found == "\t" else found
        cure = f": save it with {needed}" if dialect.trained else f" {dialect.cure('delimiter', named)}"
        raise DataError(f"{path}: fields are separated by {SEPARATORS[found]}; {needed} are needed{cure}")


def _refuse_duplicates(names: Iterable[str], path: Path) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise DataError(f"{path} has several columns named {name!r}; names must be unique")
        seen.add(name)
