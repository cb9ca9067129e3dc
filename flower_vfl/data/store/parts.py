"""One party's part of a prepared data set, for a host that may hold nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

from flower_vfl.data.store import layout
from flower_vfl.data.store.dataset import Dataset, open_dataset
from flower_vfl.errors import DataError
from flower_vfl.files import writing_to


def write_part(source: Path, party: str, out: Path) -> Dataset:
    """Copy one party's part into a folder of its own, and check every file of it.

    Parameters
    ----------
    source : Path
        A prepared folder that holds the party's part.
    party : str
        A party with features, or the label party, whose part has the labels in it.
    out : Path
        Target folder, which must not exist, or be empty.

    Returns
    -------
    Dataset
        The part: the manifest, the shared IDs in their order, the party's columns, the label party's labels.

    Raises
    ------
    DataError
        When there is no such party, or when a file is missing or not as it was prepared.
    OutputExistsError
        When `out` is not empty.
    StorageError
        When the disk is full or fails.
    """
    dataset = open_dataset(source)
    known = {*dataset.parties, dataset.label_party}
    if party not in known:
        raise DataError(f"{source} has no party {party!r}; it has {', '.join(sorted(known))}")
    wanted = {"ids": dataset.has_ids, party: party in dataset.parties, "labels": party == dataset.label_party}
    folders = [name for name, belongs in wanted.items() if belongs]
    for name in folders:
        if not (source / name).is_dir():
            raise DataError(f"{source} does not hold what party {party!r} needs: there is no folder {source / name}")
    with layout.new_folder(out) as folder:
        _copy(source / layout.MANIFEST, folder / layout.MANIFEST)
        for file in (file for name in folders for file in (source / name).rglob("*") if file.is_file()):
            _copy(file, folder / file.relative_to(source))
        open_dataset(folder).verify()
    return open_dataset(out)


def _copy(file: Path, target: Path) -> None:
    with file.open("rb") as content, writing_to(target):
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with target.open("wb") as copy:
            shutil.copyfileobj(content, copy)
