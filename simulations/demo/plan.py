"""The runs that the demo compares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flower_vfl.auditing.entries import NO_GRADIENTS
from flower_vfl.config import Config, build_config, canonical_key, load_config
from flower_vfl.config.parsing import parse_defenses
from flower_vfl.config.schema import AttackConfig
from flower_vfl.errors import ConfigError

PRESET = "census"
SHORT_EPOCHS = 3
"""Epochs of the short demo; with --full it is the preset's number."""

BASELINE = "no-gradients"
"""The run that sends nothing that depends on labels: a defense that predicts worse should not be used."""

PROOF = "local-head-e1"
"""The run with a proof: its number of epochs must not depend on labels either."""

RUNS = {
    "none": "",
    PROOF: "local_head(epsilon=1.0, mechanism=randomised_response)",
    "marvell-full-s4": "marvell_full(s=4.0)",
    "marvell-s4": "marvell(s=4.0)",
    "max-norm": "max_norm",
    "iso-t25": "iso(t=25.0)",
    BASELINE: NO_GRADIENTS,
}
"""Names and defenses in the order in which they start: no defense and the recommended one are the first comparison."""

FULL_RUNS = RUNS | {
    "marvell-s25": "marvell(s=25.0)",
    "marvell-s1": "marvell(s=1.0)",
    "iso-t1": "iso(t=1.0)",
    "potential-energy": "potential_energy(alpha=1.0)",
}
"""The runs of --full: also other strengths, and a defense of embeddings, whose leak is measured there alone."""

FIRST_RUNS = ("none", PROOF)

_LABELS = (1, 4, 16)
FULL_ATTACKS = (
    *("cosine", "remembered_norm"),
    *(f"model_completion(k={k})" for k in _LABELS),
    *(f"embedding_reader(reader=linear,k={k})" for k in _LABELS),
)
"""Attacks that --full adds to those of every run: an oracle, longitudinal curves, and labels to rebuild."""

_REBUILD = "attack.rebuilt"
_NETWORK = frozenset(
    f"transport.{name}"
    for name in (
        *("host", "advertise", "port", "fallback"),
        *("connect_timeout", "reconnect_timeout", "rejoin_timeout"),
    )
)
"""Keys of a network, which parties in one process do not use."""


def demo_configs(overrides: Mapping[str, str], *, full: bool = False) -> dict[str, Config]:
    """Return the configuration of each run of the demo, by its name.

    Parameters
    ----------
    overrides : Mapping
        Values of the command line's `--set`.
    full : bool
        True if there are more runs, as long as the preset's and with all attacks.

    Raises
    ------
    ConfigError
        When an override is unknown, wrong, or of no effect here.
    """
    given = {canonical_key(key): value for key, value in overrides.items()}
    _check(given, full=full)
    attacks = ", ".join(dict.fromkeys([*AttackConfig().names, *FULL_ATTACKS]))
    usual = {"attack.names": attacks} if full else {"training.epochs": str(SHORT_EPOCHS)}
    runs = FULL_RUNS if full else RUNS
    plain = load_config(PRESET, {**usual, **given}).model_dump()
    return {name: build_config(_settings(plain, name, text)) for name, text in runs.items()}


def _settings(plain: Mapping[str, Any], name: str, defense: str) -> dict[str, Any]:
    """Return the settings of one run; that with a proof and that without gradients never end early by labels.

    Without gradients, bottom models are pre-trained for as long as heads are trained, and there is nothing to refit.
    """
    training, attack = dict(plain["training"]), dict(plain["attack"])
    if name in (BASELINE, PROOF):
        training["patience"] = 0
        attack |= {"max_leak": 1.0, "max_bound": 1.0}
    if name == BASELINE:
        training |= {"gradients": False, "pretrain": training["pretrain"] or SHORT_EPOCHS, "refit": 0}
        return {**plain, "attack": attack, "training": training}
    return {**plain, "attack": attack, "training": training, "defenses": parse_defenses(defense)}


def _check(given: Mapping[str, str], *, full: bool) -> None:
    """Refuse settings that the demo would ignore."""
    if "defenses" in given:
        raise ConfigError(
            "the demo compares defenses of its own: --set defenses has no effect on it; "
            'for another defense use `flower-vfl run census --set "defenses=..."`'
        )
    if "training.gradients" in given:
        raise ConfigError(
            "the demo compares runs with gradients and one without: --set training.gradients has no effect on it; for "
            "another run without gradients use `flower-vfl run census --set training.gradients=false`"
        )
    unused = sorted(key for key in given if key.startswith("align."))
    if unused:
        raise ConfigError(f"the demo aligns no IDs: --set {unused[0]} has no effect on it")
    if given.get("transport.kind", "inproc") == "inproc" and (idle := sorted(_NETWORK & given.keys())):
        raise ConfigError(
            f"the parties of the demo share a process: --set {idle[0]} has no effect on it; with --set "
            "transport.kind=stream they talk over the network of this machine"
        )
    if "metrics_port" in given:
        raise ConfigError(
            "the runs of the demo are side by side, and one port cannot serve them all: leave out "
            "--set metrics_port, or use `flower-vfl run census`"
        )
    if _REBUILD in given and not full and "attack.names" not in given:
        raise ConfigError(f"without --full the demo rebuilds no model: --set {_REBUILD} has no effect on it")
