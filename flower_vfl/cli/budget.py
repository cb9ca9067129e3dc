"""The command that plans a privacy budget, and shows or begins the ledger that keeps account of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flower_vfl.errors import ConfigError

if TYPE_CHECKING:
    from flower_vfl.accounting import Mechanism
    from flower_vfl.accounting.ledger import Account, PrivacyLedger

_LABELS = 10**9
"""More labels than any training has: where all of them together reveal less than one bit, nothing can be learned."""

_FEW = 100
"""Number of labels that every training has: a smaller least number is not printed."""

_PLAN = "{:<20} {:<11} {:<20} {}"
_ENTRY = "{:<19} {:<13} {:<34} {:<5} {}"


class Planned(StrEnum):
    """Mechanisms that can be planned."""

    randomised_response = "randomised_response"
    laplace = "laplace"
    gaussian = "gaussian"


def budget(
    ledger: Annotated[
        Path | None, typer.Argument(metavar="[LEDGER]", help="File of the account over several trainings.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="Plan one training of this epsilon for each label.")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of that training.")] = 1,
    delta: Annotated[
        float | None, typer.Option(help="Delta of epsilon or limit [default: the ledger's, or 0].")
    ] = None,
    classes: Annotated[int, typer.Option(min=2, help="Classes of the labels.")] = 2,
    mechanism: Annotated[Planned | None, typer.Option(help="Plan this mechanism alone [default: all].")] = None,
    limit: Annotated[
        float | None, typer.Option(help="Begin LEDGER with this epsilon for all trainings, or change its limit.")
    ] = None,
) -> None:
    """Plan the privacy budget of a training, and account for it.

    With --epsilon: the noise that each mechanism needs, before anything is trained. With LEDGER: the budget that
    trainings have spent, and the rest. With both: also whether the plan fits into the rest.

    \b
    flower-vfl budget --epsilon 2 --epochs 6 --delta 1e-6
    flower-vfl budget ledger.json --limit 4
    flower-vfl run census --set "defenses=local_head(epsilon=1.0)"
      --set privacy.ledger=ledger.json
    flower-vfl budget ledger.json
    """  # noqa: D301 - click wants the backspace
    from flower_vfl.accounting.ledger import PrivacyLedger

    if ledger is None and (limit is not None or epsilon is None):
        raise ConfigError("give --epsilon to plan a training, or a LEDGER to show one; --limit is of a LEDGER")
    opened = None if ledger is None else PrivacyLedger(ledger)
    if opened is not None and limit is not None:
        _set_limit(opened, limit, delta)
    account = None if opened is None else opened.read()
    if epsilon is not None:
        at = delta if delta is not None or account is None else account.limit.delta
        lines = [*_plan_lines(mechanism, epsilon, at or 0.0, epochs, classes, account)]  # all or an error
    else:
        lines = [*_ledger_lines(opened, account)] if opened is not None and account is not None else []
    for line in lines:
        typer.echo(line)


def _set_limit(ledger: PrivacyLedger, epsilon: float, delta: float | None) -> None:
    """Begin a ledger, or change the limit of one; its delta stays where none is given."""
    from flower_vfl.accounting.ledger import Limit

    if ledger.path.exists() or ledger.key_path.exists():
        ledger.set_limit(Limit(epsilon, ledger.read().limit.delta if delta is None else delta))
    else:
        ledger.create(ledger.path, Limit(epsilon, delta or 0.0))


def _plan_lines(
    mechanism: Planned | None, epsilon: float, delta: float, epochs: int, classes: int, account: Account | None
) -> Iterator[str]:
    from flower_vfl.accounting import Bounded, Release, calibrate, check_target, compose_epsilon, largest_auc

    check_target(epsilon)
    yield f"Plan: epsilon {epsilon:g} of each label at delta {delta:g}, over {_counted(epochs, 'epoch')}"
    yield f"An attack tells two labels of one person apart with an AUC of at most {largest_auc(epsilon, delta):.4g}"
    bits = Bounded(epsilon, delta).bits
    if 0.0 < bits < 1.0 / _FEW:
        yield f"Fewer than {math.ceil(1.0 / bits):,} labels are refused: they tell less than one bit together"
    yield from ("", _PLAN.format("mechanism", "noise drawn", "strength", "epsilon of one draw"))
    useful = False
    for name, make in _families(classes).items():
        if mechanism is not None and name != mechanism:
            continue
        for drawn, draws in {"once": 1, "each epoch": epochs}.items():
            if name == Planned.gaussian and delta == 0.0 and mechanism is None:
                yield _PLAN.format(name, drawn, "none", "it needs a delta above 0")
                continue
            found = calibrate(make, epsilon, delta, draws=draws)
            if found.bits * draws * _LABELS < 1.0:
                yield _PLAN.format(name, drawn, "none", "no signal would be left")
                continue
            useful = True
            one = compose_epsilon([Release(found)], delta)
            yield _PLAN.format(name, drawn, found.strength, f"{one:.4g}" if one else "0, within delta")
    if not useful:
        raise ConfigError(
            f"epsilon {epsilon:g} at delta {delta:g} cannot be met by a training that learns: randomised labels of "
            f"{_LABELS:,} people together would tell less than one bit; give a larger epsilon, or train with "
            "training.gradients = false, which sends nothing that depends on labels"
        )
    if account is not None:
        planned = Release(Bounded(epsilon, delta))
        total, words = account.spent_with([planned]), "keeps within" if account.allows(planned) else "exceeds"
        yield ""
        yield f"With what the ledger has, that is epsilon {total:.4g} at delta {account.limit.delta:g};"
        yield f"it {words} the limit of {account.limit.epsilon:.4g}"


def _families(classes: int) -> dict[str, Callable[[float], Mechanism]]:
    """Return functions from a level of noise to a mechanism, by name; more than two classes have one-hot targets."""
    from flower_vfl.accounting import Gaussian, Laplace, RandomisedResponse

    coordinates = 1 if classes == 2 else 2
    return {
        Planned.randomised_response: lambda noise: RandomisedResponse(1.0 / noise, classes),
        Planned.laplace: partial(Laplace, coordinates=coordinates),
        Planned.gaussian: partial(Gaussian, coordinates=coordinates),
    }


def _ledger_lines(ledger: PrivacyLedger, account: Account) -> Iterator[str]:
    from flower_vfl.accounting import compose_epsilon

    limit, spent = account.limit, account.spent
    yield f"Ledger: {ledger.path}"
    yield (
        f"{_counted(len(account.entries), 'training')} spent epsilon {spent:.4g} of {limit.epsilon:.4g} "
        f"at delta {limit.delta:g}; {max(0.0, limit.epsilon - spent):.4g} is left"
    )
    if account.entries:
        yield from ("", _ENTRY.format("when (UTC)", "defense", "mechanism", "draws", "alone"))
    for entry in account.entries:
        mechanism = f"{entry.release.mechanism.name}, {entry.release.mechanism.strength}"
        draws = "once" if entry.release.kept else str(entry.release.draws)
        alone = compose_epsilon([entry.release], limit.delta)
        yield _ENTRY.format(
            entry.time.removesuffix("+00:00"), entry.defense.partition("(")[0], mechanism, draws, f"{alone:.4g}"
        )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")
