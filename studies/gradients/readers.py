"""The table of `gradients.md` with attacks and readers that the papers did not have: shirts, four settings.

Usage::

    python -m studies gradients run --study shirt --settings none iso-5 max_norm marvell-4
    python -m studies.gradients.readers --runs runs/gradients
"""

from __future__ import annotations

import argparse
from pathlib import Path

from flower_vfl.auditing.verdict import with_own_data
from studies.common import finished, shown, table

SETTINGS = ("none", "iso-5", "max_norm", "marvell-4")


def rows(runs: Path) -> list[list[str]]:
    """Return, for each setting, the strongest practical attack, the informed reader, and that with embeddings."""
    found = []
    for setting in SETTINGS:
        results = [result for _, result in finished(runs / "shirt" / setting)]
        leaks = [result["verdict"]["parties"][0]["leak"] for result in results]
        both = [entry["mean"] for result in results if (entry := with_own_data(result["leakage"])) is not None]
        names = " or ".join(sorted({f"`{leak['practical']['label']}`" for leak in leaks}))
        practical = shown([leak["practical"]["reached"] for leak in leaks])
        informed = shown([leak["informed"]["reached"] for leak in leaks])
        found.append([f"`{setting}`", str(len(results)), f"{practical} ({names})", informed, shown(both)])
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/gradients"))
    heads = ["setting", "seeds", "strongest practical attack", "informed reader", "with embeddings or columns"]
    print(table(heads, rows(parser.parse_args().runs)))


if __name__ == "__main__":
    main()
