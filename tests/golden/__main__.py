"""The command line of the golden results: record, compare, against."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.golden.comparing import Meant, differences
from tests.golden.recording import GoldenError, record
from tests.golden.runs import RUNS

ROOT = Path(__file__).resolve().parents[2]


def show(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description="Golden results of small runs.")
    commands = parser.add_subparsers(dest="command", required=True)
    recorded = commands.add_parser("record", help="record the runs of one version into a folder")
    recorded.add_argument("out", type=Path)
    recorded.add_argument("--root", type=Path, default=ROOT, help="work tree of the version [default: this one]")
    compared = commands.add_parser("compare", help="compare two recordings")
    compared.add_argument("before", type=Path)
    compared.add_argument("after", type=Path)
    both = commands.add_parser("against", help="record a commit and this tree, and compare")
    both.add_argument("commit")
    for command in (recorded, both):
        command.add_argument("--only", nargs="+", choices=list(RUNS), default=list(RUNS), metavar="RUN")
        command.add_argument("--jobs", type=int, default=0, help="runs at once [default: one for each core]")
    for command in (compared, both):
        command.add_argument("--meant", type=Path, help="file that lists the intended differences")
    return parser.parse_args()


@contextmanager
def work_tree(commit: str) -> Iterator[Path]:
    """Yield a work tree of a commit; it is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="golden-tree-") as folder:
        tree = Path(folder) / "tree"
        git("worktree", "add", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            git("worktree", "remove", "--force", str(tree))


def git(*command: str) -> None:
    done = subprocess.run(["git", "-C", str(ROOT), *command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise GoldenError(f"git {' '.join(command)}: {done.stderr.strip()}")


def record_shown(root: Path, out: Path, options: argparse.Namespace) -> int:
    began = time.monotonic()
    failed = record(root, out, options.only, jobs=options.jobs)
    show(
        f"{len(options.only)} runs of {root} in {time.monotonic() - began:.0f} s; failed: {', '.join(failed) or 'none'}"
    )
    return int(bool(failed))


def compare_shown(before: Path, after: Path, meant: Meant) -> int:
    found = 0
    for line in differences(before, after, meant):
        found += 1
        show(line)
    for pattern in meant.unused():
        show(f"meant, but nothing differs: {pattern}")
    show(f"{found} differences; {sum(meant.patterns.values())} more are meant" if found or meant.patterns else "equal")
    return int(bool(found))


def main() -> int:
    options = arguments()
    if options.command == "record":
        return record_shown(options.root, options.out, options)
    meant = Meant.read(options.meant) if options.meant else Meant()
    if options.command == "compare":
        return compare_shown(options.before, options.after, meant)
    with tempfile.TemporaryDirectory(prefix="golden-compared-") as folder:
        before, after = Path(folder) / "before", Path(folder) / "after"
        with work_tree(options.commit) as tree:
            record_shown(tree, before, options)
        record_shown(ROOT, after, options)
        return compare_shown(before, after, meant)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (GoldenError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
