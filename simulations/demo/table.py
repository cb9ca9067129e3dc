"""The demo's table: the utility behind each defense, and the leak that remains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flower_vfl.apps.result_schema import kept_utility
from flower_vfl.auditing.verdict import with_own_data

HEADINGS = ("defense", "test AUC", "worst practical leak", "informed reader", "with own data", "guessing")
TITLE = "Leak AUC: 0.5 is guessing, 1 reads every label"
EXPLANATION = (
    "Worst practical leak: the best of the attacks that a party can run with what it receives. Informed reader: fitted "
    "to the labels of one half of the rows, scored on the other half. Both see gradients alone. With own data: an "
    "informed reader that has the party's own columns or embeddings beside them, as the party has. Guessing: the value "
    "of random scores on the rows of the worst practical attack."
)
_STYLES = {"leaks": "red", "not tested": "yellow", "no leak found": "green"}


def rows(summaries: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Yield for each run the cells of `HEADINGS`; a dash where nothing was measured."""
    from flower_vfl.reports.words import defenses, number

    for summary in summaries:
        last = kept_utility(summary)
        auc, accuracy = last.get("test_auc"), last.get("test_accuracy")
        yield (
            defenses(summary),
            number(auc, 4) if auc is not None else f"acc. {number(accuracy, 4)}",
            *map(number, leaks(summary)),
        )


def leaks(summary: Mapping[str, Any]) -> tuple[float | None, float | None, float | None, float | None]:
    """Return the worst practical leak, the informed reader's without and with own data, and the first one's chance.

    With several parties each is the worst one; missing values are None.
    """
    verdict = summary.get("verdict")
    lines = [party.get("leak") or {} for party in verdict.get("parties", ())] if isinstance(verdict, dict) else []
    practical = max((line["practical"] for line in lines if line.get("practical")), key=_reached, default=None)
    informed = max((line["informed"] for line in lines if line.get("informed")), key=_reached, default=None)
    both = with_own_data(summary["leakage"])
    return (
        None if practical is None else practical.get("reached"),
        None if informed is None else informed.get("reached"),
        None if both is None else both["mean"],
        None if practical is None else practical.get("null"),
    )


def _reached(entry: Mapping[str, Any]) -> float:
    value = entry.get("reached")
    return -1.0 if value is None else float(value)


def print_last(summaries: Sequence[Mapping[str, Any]], *, full: bool, as_markdown: bool) -> None:
    """Print the end of a demo: after a full one all measurements of its runs, and last the demo's table."""
    from flower_vfl.simulations.tables import print_results

    if full:
        print_results(summaries)
    if as_markdown:
        Console().out(markdown(summaries), highlight=False)
    else:
        print_demo(summaries)
        Console().print(EXPLANATION, highlight=False)


def print_demo(summaries: Sequence[Mapping[str, Any]], *, title: str = TITLE) -> None:
    """Print the table, coloured by the verdict, as wide as the terminal allows."""
    table = Table(title=title, box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(HEADINGS[0], overflow="fold")
    for column in HEADINGS[1:]:
        table.add_column(column.replace(" ", "\n"), justify="right", no_wrap=True)
    for summary, (defense, auc, *read, guessing) in zip(summaries, rows(summaries), strict=True):
        style = _STYLES.get(str((summary.get("verdict") or {}).get("status")), "")
        table.add_row(Text(defense), auc, *(Text(value, style) for value in read), guessing)
    Console().print(table)


def markdown(summaries: Sequence[Mapping[str, Any]]) -> str:
    """Return the table as Markdown, for README.md between its two marks."""
    lines = [HEADINGS, ("---", *("---:" for _ in HEADINGS[1:])), *rows(summaries)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
