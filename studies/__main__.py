"""`python -m studies NAME run` does the runs of a page, `python -m studies NAME page` makes it.

The study `headline` has commands of its own, which `--help` shows.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path


def main() -> None:
    """Run a study's command line, or list the studies."""
    names = sorted(path.parent.name for path in Path(__file__).parent.glob("*/study.py"))
    if len(sys.argv) < 2 or sys.argv[1] not in names:
        print("python -m studies NAME run|page [options]; headline has other commands than run, see its --help")
        print("NAME is one of", *names, sep="\n  ")
        raise SystemExit(0 if sys.argv[1:] in ([], ["--help"], ["-h"]) else 2)
    name = sys.argv.pop(1)
    sys.argv[0] = f"python -m studies {name}"
    study = import_module(f"studies.{name}.study")
    (study.STUDY.main if hasattr(study, "STUDY") else study.main)()


if __name__ == "__main__":
    main()
