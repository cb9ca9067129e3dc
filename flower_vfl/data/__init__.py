"""Vertical data: the columns of each party, prepared once, memory-mapped, gathered a batch at a time.

Importing this package loads no large module, so that a wrong name of a data set fails at once.
"""

from typing import TYPE_CHECKING

from flower_vfl.lazy import lazy_names

if TYPE_CHECKING:
    from flower_vfl.data.encoding.encoding import PartyEncoding
    from flower_vfl.data.sources.catalog import CatalogEntry, available, load, prepare
    from flower_vfl.data.store.dataset import Alignment, Dataset, FeatureSpec, Labels, PartyTable, open_dataset
    from flower_vfl.data.store.memory import MemoryData, VerticalData, array_table
    from flower_vfl.data.store.source import ArraySource, FeatureSource

__all__ = [
    "Alignment",
    "ArraySource",
    "CatalogEntry",
    "Dataset",
    "FeatureSource",
    "FeatureSpec",
    "Labels",
    "MemoryData",
    "PartyEncoding",
    "PartyTable",
    "VerticalData",
    "array_table",
    "available",
    "load",
    "open_dataset",
    "prepare",
]

_HOMES = {
    "PartyEncoding": "flower_vfl.data.encoding.encoding",
    **dict.fromkeys(("CatalogEntry", "available", "load", "prepare"), "flower_vfl.data.sources.catalog"),
    **dict.fromkeys(
        ("Alignment", "Dataset", "FeatureSpec", "Labels", "PartyTable", "open_dataset"), "flower_vfl.data.store.dataset"
    ),
    **dict.fromkeys(("MemoryData", "VerticalData", "array_table"), "flower_vfl.data.store.memory"),
    **dict.fromkeys(("ArraySource", "FeatureSource"), "flower_vfl.data.store.source"),
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
