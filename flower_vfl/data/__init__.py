"""Vertical data: what each party holds, prepared once, memory-mapped, gathered a batch at a time."""

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
