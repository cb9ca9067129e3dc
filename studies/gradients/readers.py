"""The attacks and readers that the papers did not have, for the table of `gradients.md`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from flower_vfl.auditing.verdict import with_own_data
from studies.common import finished, shown, table

HEADS = ("setting", "seeds", "strongest practical attack", "informed reader", "with embeddings or columns")


def reader_table(runs: Path, settings: Iterable[str]) -> str:
    """Return a table of the strongest practical attack, the informed reader, and that with embeddings, by setting."""
    rows = []
    for setting in settings:
        results = [result for _, result in finished(runs / setting)]
        leaks = [result["verdict"]["parties"][0]["leak"] for result in results]
        both = [entry["mean"] for result in results if (entry := with_own_data(result["leakage"])) is not None]
        names = " or ".join(sorted({f"`{leak['practical']['label']}`" for leak in leaks}))
        practical = shown([leak["practical"]["reached"] for leak in leaks])
        informed = shown([leak["informed"]["reached"] for leak in leaks])
        rows.append([f"`{setting}`", str(len(results)), f"{practical} ({names})", informed, shown(both)])
    return table(HEADS, rows)
