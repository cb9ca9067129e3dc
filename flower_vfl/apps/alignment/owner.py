"""The permissions that the owner of a host gives to alignments; none of them comes from the run config.

A feature party's owner sets them in the `--node-config` of its SuperNode; the label party, which has no SuperNode, in
the environment of its ServerApp.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flower_vfl.data.sources.id_sources import IdSource
from flower_vfl.errors import ConfigError

IDS_VARIABLE, COLUMN_VARIABLE, RESULT_VARIABLE = "FLOWER_VFL_IDS", "FLOWER_VFL_IDS_COLUMN", "FLOWER_VFL_ALIGNMENT"
METHODS = ("psi", "hash")
MAX_IDS = 10_000_000


@dataclass(frozen=True)
class Owner:
    """The IDs and the limits of one host in an alignment.

    Attributes
    ----------
    source : IdSource
        The IDs that may be compared.
    target : Path
        File of the result.
    method : str
        The only method that the host accepts.
    max_ids : int
        Largest number of IDs that the label party may compare.
    """

    source: IdSource
    target: Path
    method: str = METHODS[0]
    max_ids: int = MAX_IDS

    @classmethod
    def of_node(cls, node_config: Mapping[str, object]) -> Owner:
        """Return the permissions in a deployed node's `--node-config`.

        Raises
        ------
        ConfigError
            When it does not name the IDs and the file of the result, or a value is not allowed.
        """
        keys = ("party", "ids", "ids-column", "alignment", "align-method")
        given = {key: str(node_config.get(key) or "") for key in keys}
        if not given["ids"] or not given["alignment"]:
            raise ConfigError(
                'this host does not say which IDs may be aligned: start its SuperNode with --node-config "'
                f"party='{given['party']}' ids='/path/people.csv' ids-column='id' alignment='/path/alignment.parquet'\""
            )
        method, limit = given["align-method"] or METHODS[0], str(node_config.get("align-max-ids", MAX_IDS))
        if method not in METHODS:
            raise ConfigError(f"align-method of this node is {method!r}; --node-config allows 'psi' or 'hash'")
        if not limit.isdecimal() or int(limit) < 1:
            raise ConfigError(f"align-max-ids of this node is {limit!r}; a whole number of at least 1 is needed")
        return cls(
            _source(given["ids"], given["ids-column"], "ids and ids-column in --node-config"),
            _path(given["alignment"]),
            method,
            int(limit),
        )

    @classmethod
    def of_this_host(cls) -> Owner:
        """Return the permissions in the environment of the label party's ServerApp.

        Raises
        ------
        ConfigError
            When it does not name the IDs and the file of the result.
        """
        ids, target = os.environ.get(IDS_VARIABLE), os.environ.get(RESULT_VARIABLE)
        if not ids or not target:
            raise ConfigError(
                f"this host does not say which IDs to align: set {IDS_VARIABLE} to the label party's file (and "
                f"{COLUMN_VARIABLE}, if its column is not 'id') and {RESULT_VARIABLE} to where the result goes, in the "
                "environment of the SuperLink (or of its SuperExec)"
            )
        return cls(
            _source(ids, os.environ.get(COLUMN_VARIABLE, ""), f"{IDS_VARIABLE} and {COLUMN_VARIABLE}"), _path(target)
        )


def _source(file: str, column: str, settings: str) -> IdSource:
    words = (
        f"In a deployment {settings} name the file and its column; no other option is read: write whole IDs, in UTF-8"
    )
    return IdSource((_path(file),), column or "id", settings=words)


def _path(name: str) -> Path:
    return Path(name).expanduser()
