"""A user's own data: CSV, Parquet, arrays or a folder of images, one file for each party, joined by an ID.

Each party can prepare its own file on its own host: the order of rows and the test set follow from the IDs alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from flower_vfl.data.encoding.encoding import PartyEncoding, fit_party
from flower_vfl.data.encoding.ids import in_test_set, join_ids, read_ids, select_ids
from flower_vfl.data.encoding.inference import infer
from flower_vfl.data.encoding.labels import EncodedLabels, encode_labels, known_labels, require_labels
from flower_vfl.data.encoding.messages import option_line, set_options
from flower_vfl.data.encoding.reading import EMPTY, ColumnFormat, TableReader
from flower_vfl.data.encoding.values import Place, require_columns
from flower_vfl.data.formats.arrays import ROW, image_paths
from flower_vfl.data.sources.files_options import FilesOptions
from flower_vfl.data.sources.party_files import RawFile, label_holder, labelled_rows, read_raw, resolved
from flower_vfl.data.sources.recipe import Options, Progress, Recipe
from flower_vfl.data.store.alignment import AlignmentFile
from flower_vfl.data.store.builder import Builder
from flower_vfl.data.store.dataset import PARTS, Part
from flower_vfl.data.store.party_names import check_parties, check_party_name
from flower_vfl.errors import ConfigError, DataError, suggestion

_log = logging.getLogger(__name__)

_FEW_TEST_ROWS = 30
"""Number of test rows below which an accuracy is known to no better than 0.2."""


class Files(Recipe):
    """Recipe of a user's own tables, arrays and images."""

    name: ClassVar[str] = "files"
    description: ClassVar[str] = "your own CSV, Parquet, .npz or folder of images, one a party, joined by an ID"
    licence: ClassVar[str] = "yours"
    options: ClassVar[type[Options]] = FilesOptions

    def inputs(self, source: Path | None, options: FilesOptions) -> list[Path]:
        """Return all files; relative names are in the folder `source`."""
        parts: tuple[Part, ...] = PARTS if options.has_test_files else ("train",)
        names = [name for part in parts for name in options.paths(part).values()]
        paths = [resolved(source, name) for name in [*names, *options.alignments().values()]]
        return [file for path in paths for file in (image_paths(path) if path.is_dir() else [path])]

    def write(self, builder: Builder, source: Path | None, options: FilesOptions, progress: Progress) -> None:
        """Read, join, split and encode the files."""
        for party in options.files:
            check_party_name(party)
        raw = _read_all(source, options)
        _require_named(raw, options)
        aligned = {part: AlignmentFile.read(resolved(source, name)) for part, name in options.alignments().items()}
        holder = label_holder(raw["train"], options)
        if holder and options.unlabelled == "drop":
            train = labelled_rows(raw["train"][holder], options)
            test = labelled_rows(raw["test"][holder], options) if options.has_test_files else train
            raw = {"train": {**raw["train"], holder: train}, "test": {**raw["test"], holder: test}}
        progress(0.3)
        tables = _align(builder, raw, aligned, options)
        progress(0.5)
        label_party = _label_party(holder, aligned, options)
        check_parties(options.files, label_party)
        labels = _labels({part: raw[part][holder] for part in PARTS}, tables[holder], options) if holder else None
        unaligned: NDArray[np.int64] | None = None
        for number, party in enumerate(options.files):
            found = self._add_party(builder, party, raw, tables[party], options, labels if holder == party else None)
            unaligned = found if holder == party else unaligned
            progress(0.5 + 0.4 * (number + 1) / len(options.files))
        if labels is not None:
            builder.add_labels(labels, unaligned)
        self.finish(
            builder,
            options,
            label_party=label_party,
            source="files of the user",
            parties=_all_parties(aligned, options),
        )

    def _add_party(
        self,
        builder: Builder,
        party: str,
        raw: Mapping[Part, Mapping[str, RawFile]],
        tables: Mapping[Part, pa.Table],
        options: FilesOptions,
        labels: EncodedLabels | None,
    ) -> NDArray[np.int64] | None:
        """Write a party's rows; return the classes of its unaligned rows, if it has the `labels`."""
        path, stored = str(raw["train"][party].path), raw["train"][party].arrays
        if stored is not None:
            return self._add_arrays(builder, party, {part: raw[part][party] for part in PARTS}, tables, options, labels)
        reader = self._reader(party, raw, tables, options, has_labels=labels is not None)
        encoding = fit_party(
            reader.read(tables["train"], path),
            numeric=reader.numeric,
            categorical=reader.categorical,
            file=path,
            missing=options.missing,
            min_count=options.min_count,
        )
        encoding = replace(encoding, reader=reader)

        def complete(rows: pa.Table) -> NDArray[np.bool_]:
            kept = np.ones(rows.num_rows, dtype=np.bool_)
            if options.missing == "error":
                read = reader.read(rows, path)
                for name in reader.numeric:
                    kept &= ~np.asarray(pc.is_null(read.column(name), nan_is_null=True))
            encoding.encode(rows.filter(pa.array(kept)), path)
            return kept

        def usable(rows: pa.Table) -> NDArray[np.bool_]:
            try:
                return complete(rows)
            except DataError:  # checked again in the whole file, for a message with the file's row number
                own = raw["train"][party]
                needed = pc.is_in(own.ids(options.id), value_set=read_ids(rows, options.id, path))
                reader.check(own.table, path, needed, "mean")
                raise

        unaligned, classes = _unaligned(raw["train"][party], tables, labels, options, usable)
        builder.add_table(party, encoding, tables, path, unaligned)
        return classes

    def _reader(
        self,
        party: str,
        raw: Mapping[Part, Mapping[str, RawFile]],
        tables: Mapping[Part, pa.Table],
        options: FilesOptions,
        *,
        has_labels: bool,
    ) -> TableReader:
        """Return the reader of a party's columns, whose types follow from its training rows; both files fit it."""
        path = str(raw["train"][party].path)
        columns = [name for name in tables["train"].column_names if name != options.id]
        if options.label and options.label in columns:
            columns.remove(options.label)
            if not has_labels:
                _log.warning("%s: column %r, called like the label, is no feature of %r", path, options.label, party)
        if not columns:
            line = option_line("labels_file", path)
            cure = f"; name it in {line} in place of files.{party}" if has_labels else ""
            raise DataError(f"{path}: no column is left for party {party!r} besides ID and label{cure}")
        used = read_ids(tables["train"], options.id, path)
        rows = np.asarray(pc.index_in(used, value_set=raw["train"][party].ids(options.id)), dtype=np.int64)
        reader = infer(tables["train"].select(columns), options.rules(columns, party), path, rows)
        named = options.rules(columns, party).dtype
        left_out = [f"{one.name!r} ({one.why})" for one in reader.columns if not one.columns and one.name not in named]
        if not (reader.numeric or reader.categorical):
            raise DataError(f"{path}: no column is left for party {party!r}: {_nothing_left(reader.columns, named)}")
        if left_out:
            _log.warning("%s: left out of the columns of %r: %s", path, party, ", ".join(left_out))
        for file, table, used in _used_rows({part: raw[part][party] for part in PARTS}, tables, options):
            reader.check(table, file, used, options.missing)
        return reader

    def _add_arrays(
        self,
        builder: Builder,
        party: str,
        raw: Mapping[Part, RawFile],
        tables: Mapping[Part, pa.Table],
        options: FilesOptions,
        labels: EncodedLabels | None,
    ) -> NDArray[np.int64] | None:
        """Write a party's arrays or images; return the classes of its unaligned rows, if it has the `labels`."""
        stored = {part: raw[part].arrays for part in PARTS}
        train, test = stored["train"], stored["test"]
        if train is None or test is None or train.spec != test.spec:
            raise DataError(
                f"party {party!r}: {raw['train'].path} and {raw['test'].path} hold rows of different shapes"
            )
        for part in PARTS:
            arrays = train if part == "train" else test
            out = builder.create_arrays(party, train.spec, part)["features.npy"]
            arrays.copy(tables[part].column(ROW).to_numpy(), out)

        def write_unaligned(rows: pa.Table) -> NDArray[np.bool_]:
            out = builder.create_unaligned(party, train.spec, rows.num_rows)["features.npy"]
            train.copy(rows.column(ROW).to_numpy(), out)
            return np.ones(rows.num_rows, dtype=np.bool_)

        unaligned, classes = _unaligned(raw["train"], tables, labels, options, write_unaligned)
        if unaligned is None:
            builder.remove_unaligned(party)
        builder.finish_party(party, train.spec, ("features",), PartyEncoding((), ()))
        return classes


def _read_all(source: Path | None, options: FilesOptions) -> dict[Part, dict[str, RawFile]]:
    """Return the content of the files of each part; without test files both parts have the same."""
    train = {key: read_raw(resolved(source, name), options, key) for key, name in options.paths("train").items()}
    if not options.has_test_files:
        return {"train": train, "test": train}
    test = {key: read_raw(resolved(source, name), options, key) for key, name in options.paths("test").items()}
    return {"train": train, "test": test}


def _require_named(raw: Mapping[Part, Mapping[str, RawFile]], options: FilesOptions) -> None:
    """Refuse an option with a column that no table has: a mistyped name would have no effect."""
    tables = [file.table for files in raw.values() for file in files.values() if file.arrays is None]
    known = {name for table in tables for name in table.column_names}
    for option, names in {key: getattr(options, key) for key in ("categorical", "numeric", "ignore", "dtype")}.items():
        for name in names:
            if name not in known:
                raise ConfigError(
                    f"option {option} of files: no table has a column {name!r}; {suggestion(name, known)}"
                )


def _nothing_left(columns: Sequence[ColumnFormat], named: Mapping[str, str]) -> str:
    """Return why none of the columns is left, and what to do; `named` are the kinds that the user gave."""
    ignored = ", ".join(repr(one.name) for one in columns if named.get(one.name) == "ignore")
    others = [one for one in columns if named.get(one.name) != "ignore"]
    reasons = [f"{one.name!r} ({one.why})" for one in others]
    reasons += [f"{ignored} (left out by the options ignore or dtype)"] if ignored else []
    kept = [one.name for one in others if one.why != EMPTY]
    if kept:
        return f"{', '.join(reasons)}; name what to keep, as in {set_options((f'dtype.{kept[0]}', 'category'))}"
    if not ignored:
        return f"{', '.join(reasons)}; give the party a column with values"
    return f"{', '.join(reasons)}; choose a column to keep, and take it out of these options"


def _align(
    builder: Builder,
    raw: Mapping[Part, Mapping[str, RawFile]],
    aligned: Mapping[Part, AlignmentFile],
    options: FilesOptions,
) -> dict[str, dict[Part, pa.Table]]:
    """Join the files by ID or by the alignment, split, and return each file's rows in the shared order."""
    own = {part: {key: file.ids(options.id) for key, file in raw[part].items()} for part in PARTS}
    joined = {}
    for part in PARTS:
        named = {str(raw[part][key].path): ids for key, ids in own[part].items()}
        alignment = aligned.get(part if options.has_test_files else "train")
        joined[part] = select_ids(named, alignment.ids) if alignment else join_ids(named, options.join, options.id)
    if options.has_test_files:
        both = len(set(joined["train"]) & set(joined["test"]))
        if both:
            raise DataError(f"{both} IDs are in training and in test files; leave each in one of them")
    else:
        held_out = in_test_set(joined["train"], options.test_fraction, options.split_seed)
        all_ids = np.array(joined["train"], dtype=object)
        joined = {"train": all_ids[~held_out].tolist(), "test": all_ids[held_out].tolist()}
        if 0 < len(joined["test"]) < _FEW_TEST_ROWS:
            _log.warning(
                "only %d of %d rows are in the test part, too few to tell how well a model predicts: bring more rows, "
                "set %s, or name test_files",
                *(len(joined["test"]), len(all_ids), set_options(("test_fraction", 0.5))),
            )
    builder.align(joined)
    return {
        key: {
            part: raw[part][key].table.take(pc.index_in(pa.array(joined[part], pa.string()), value_set=own[part][key]))
            for part in PARTS
        }
        for key in raw["train"]
    }


def _used_rows(
    raw: Mapping[Part, RawFile], tables: Mapping[Part, pa.Table], options: FilesOptions
) -> Iterator[tuple[str, pa.Table, pa.Array]]:
    """Yield each file's name, its rows in the order of the file, as named in messages, and a mask of the used rows."""
    used = pa.concat_arrays([read_ids(tables[part], options.id, str(raw[part].path)) for part in PARTS])
    for path, file in {str(one.path): one for one in raw.values()}.items():
        yield path, file.table, pc.is_in(file.ids(options.id), value_set=used)


def _labels(raw: Mapping[Part, RawFile], tables: Mapping[Part, pa.Table], options: FilesOptions) -> EncodedLabels:
    """Return the labels of the used rows, after checking that each row has one."""
    for file, table, used in _used_rows(raw, tables, options):
        require_columns(table, [options.label], file)
        drop = f"leave such rows out with {set_options(('unlabelled', 'drop'))}"
        cure = f"; {'remove these people from the file and align again' if options.alignments() else drop}"
        require_labels(table.column(options.label), Place(file, options.label), used, options.missing_values, cure=cure)
    train, test = (tables[part].column(options.label) for part in PARTS)
    return encode_labels(train, test, Place(str(raw["train"].path), options.label), options.positive)


def _unaligned(
    raw: RawFile,
    tables: Mapping[Part, pa.Table],
    labels: EncodedLabels | None,
    options: FilesOptions,
    usable: Callable[[pa.Table], NDArray[np.bool_]],
) -> tuple[pa.Table | None, NDArray[np.int64] | None]:
    """Return the usable rows of people whom not all parties have, and their classes.

    If the party has labels, rows without a known one are left out. ``usable`` returns a mask (N,) of the complete rows
    among the others. If a value cannot be read, no row is returned, with a warning: training does not need them.
    """
    path, rows = str(raw.path), _unshared(raw, tables, options)
    classes: NDArray[np.int64] | None = None
    try:
        if labels is not None and rows.num_rows:
            column, place = rows.column(options.label), Place(path, options.label)
            known, classes = known_labels(column, labels.names, place, options.positive, options.missing_values)
            rows = rows.filter(known)
        if not rows.num_rows:
            return None, None
        kept = usable(rows)
    except DataError as error:
        _log.warning("the rows of %s whose people others lack are not used: %s", path, error)
        return None, None
    rows, classes = rows.filter(pa.array(kept)), None if classes is None else classes[kept]
    _log.info("%s: %d rows of people whom others lack stay here, for training.pretrain", path, rows.num_rows)
    return rows, classes


def _unshared(raw: RawFile, tables: Mapping[Part, pa.Table], options: FilesOptions) -> pa.Table:
    """Return a party's rows of people whom not all parties have."""
    path = str(raw.path)
    used = pa.concat_arrays([read_ids(tables[part], options.id, path) for part in PARTS])
    own = raw.ids(options.id)
    return raw.table.filter(pc.and_(own.is_valid(), pc.invert(pc.is_in(own, value_set=used))))


def _label_party(holder: str, aligned: Mapping[Part, AlignmentFile], options: FilesOptions) -> str:
    """Return the label party's name, after checking it against the alignments."""
    own = options.label_party or (holder if holder in options.files else "")
    for file in aligned.values():
        if own and own != file.label_party:
            raise DataError(
                f"the label party is {own!r} here and {file.label_party!r} in the alignment; name it as there: "
                f"{_rename_options(own, file.label_party, options)}"
            )
        own = file.label_party
    return own or "label"


def _rename_options(own: str, name: str, options: FilesOptions) -> str:
    """Return the options that give the label party the name that it has in an alignment."""
    if own not in options.files:
        return f"--set label_party={name}"
    pairs = [f"--set files.{name}={options.files[own]}"]
    if own in options.test_files:
        pairs.append(f"--set test_files.{name}={options.test_files[own]}")
    return " ".join(pairs)


def _all_parties(aligned: Mapping[Part, AlignmentFile], options: FilesOptions) -> list[str]:
    """Return the parties that have features, on this host or on another."""
    if not aligned:
        return list(options.files)
    file = aligned["train"]
    if any(other.parties != file.parties for other in aligned.values()):
        raise DataError(
            "alignment and test_alignment were made with different parties; align again, twice with the same"
        )
    for party in options.files:
        if party not in (*file.parties, file.label_party):
            names = ", ".join((*file.parties, file.label_party))
            raise DataError(
                f"party {party!r} took no part in the alignment of {names}: call this host's file by its party's name "
                f"there, as in --set files.{file.parties[0]}={options.files[party]}, or align again with {party!r}"
            )
    return [*file.parties, *(party for party in options.files if party not in file.parties)]
