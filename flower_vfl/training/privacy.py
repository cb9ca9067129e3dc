"""Privacy accounting of a training run: checked before its sessions open, charged before its first step."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flower_vfl.accounting.ledger import PrivacyLedger, Training
from flower_vfl.config import Config
from flower_vfl.errors import ConfigError, PermissionDeniedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from flower_vfl.protocol.schedule import Schedule
    from flower_vfl.training.protocols import TrainedDefense, TrainedStrategy

_log = logging.getLogger(__name__)

LEDGER_VARIABLE = "FLOWER_VFL_LEDGER"
"""Environment variable of a deployed ServerApp that names the label party's privacy ledger."""


def ledger_of(config: Config, *, simulation: bool) -> PrivacyLedger | None:
    """Return the label party's ledger; None if its owner keeps none.

    Raises
    ------
    ConfigError
        When the run config of a deployment names one: its sender must not choose the owner's limit.
    """
    named = config.privacy.ledger
    if simulation:
        return PrivacyLedger(Path(named)) if named else None
    if named:
        raise ConfigError(
            f"privacy.ledger is {named!r} in a run config, which whoever starts a run writes; set it to '' and name "
            f"the ledger in {LEDGER_VARIABLE}, in the environment of the SuperLink (or of its SuperExec)"
        )
    kept = os.environ.get(LEDGER_VARIABLE, "")
    return PrivacyLedger(Path(kept)) if kept else None


def open_account(
    strategy: TrainedStrategy, schedule: Schedule, labels: NDArray[Any], *, simulation: bool, name: str = ""
) -> Callable[[], None]:
    """Check the epsilon of a training against the limit of its ledger; return the function that charges it.

    Parameters
    ----------
    strategy : TrainedStrategy
        The outermost strategy.
    schedule : Schedule
        The steps of the training.
    labels : NDArray
        (N,) true labels of the training rows; the strategy's own ones have canaries.
    simulation : bool
        True if all parties are on this machine.
    name : str
        The label party's name of the training, the same when it is resumed.

    Raises
    ------
    PermissionDeniedError
        When the training would exceed the limit, or has no proven epsilon.
    DataError
        When the ledger was changed, or the labels since an earlier training.
    """
    base = strategy.base
    ledger, defense = ledger_of(base.config, simulation=simulation), _proven_defense(strategy)
    if ledger is None:
        if defense is not None and not simulation:
            _log.warning(
                "%s counts this one training; epsilons of several trainings on the same labels are not added up: begin "
                "a ledger with `flower-vfl budget FILE --limit EPSILON` and name it in %s",
                defense.name,
                LEDGER_VARIABLE,
            )
        return lambda: None
    if not base.config.training.gradients:  # nothing that depends on labels is sent
        return lambda: None
    account = ledger.read()
    guarantee = None if defense is None else defense.guarantee()
    if defense is None or guarantee is None:
        raise PermissionDeniedError(
            f"nothing is proven of what this training tells of the labels, and {ledger.path} allows epsilon "
            f"{account.limit.epsilon:.4g} in all: take a defense with a proof, such as local_head, with "
            "training.patience = 0 and without attack.max_leak and attack.max_bound; or train without the ledger, "
            "and know that its account is then not complete"
        )
    release = guarantee.accounted
    if not release.kept and schedule.epochs > base.config.training.epochs:
        raise ConfigError(
            f"{defense.name} counts training.epochs = {base.config.training.epochs}, and this training has "
            f"{schedule.epochs}; set training.epochs to that"
        )
    settings = ", ".join(f"{key}={value}" for key, value in defense.params.items())
    described = f"{defense.name}({settings})"  # with the same secret, other settings may draw other noise
    secret, canaries = base.secret.seed("privacy ledger"), base.canaries.to_bytes()
    training = Training(base.alignment, labels, secret, name, described, release, canaries)
    ledger.check(training)
    return partial(_charge, strategy, ledger, training)


def check_fresh_start(strategy: TrainedStrategy) -> None:
    """Refuse weights to start from where a defense has a proof: they may follow from the labels that it hides.

    Raises
    ------
    ConfigError
        When a defense has a proof.
    """
    if (defense := _proven_defense(strategy)) is not None:
        raise ConfigError(
            f"the proof of {defense.name} holds for a top model that has not been trained on these labels, and "
            "initial_arrays may come from an earlier training on them: leave them out; if they depend on none of these "
            "labels, load them into the top model before the strategy is made"
        )


def proven_delta(strategy: TrainedStrategy) -> float:
    """Return the delta at which a strategy's smallest epsilon is proven; 0 where nothing is proven."""
    guarantee = None if (defense := _proven_defense(strategy)) is None else defense.guarantee()
    return 0.0 if guarantee is None else guarantee.delta


def _charge(strategy: TrainedStrategy, ledger: PrivacyLedger, training: Training) -> None:
    account = ledger.charge(training, datetime.now(UTC))
    limit, spent = account.limit, account.spent
    strategy.base.outcome.account = {
        "epsilon": spent,
        "delta": limit.delta,
        "limit": limit.epsilon,
        "trainings": len(account.entries),
    }
    _log.info(
        "%s: %d trainings have spent epsilon %.4g of each label at delta %g, of a limit of %.4g",
        *(ledger.path, len(account.entries), spent, limit.delta, limit.epsilon),
    )


def _proven_defense(strategy: TrainedStrategy) -> TrainedDefense | None:
    """Return the defense with the smallest proven epsilon; None if no defense has one."""
    proven = [
        (guarantee.epsilon, -depth, defense)
        for depth, defense in enumerate(strategy.chain())
        if (guarantee := defense.guarantee()) is not None
    ]
    return min(proven)[2] if proven else None
