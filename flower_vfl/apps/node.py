"""The settings of a node by its owner: its party, its role and the place of its data.

The run config comes from the label party and reaches all parties. On a host of its own a party reads nothing that the
run config names, and it chooses its role by itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from flower_vfl.config import Config
from flower_vfl.data.store.layout import MANIFEST
from flower_vfl.errors import ConfigError, SetupError, suggestion

DATA_VARIABLE = "FLOWER_VFL_DATA"
"""Environment variable of the ServerApp with the label party's only prepared folder."""

ROLES = ("feature", "attacker")
"""Roles of a node: a feature party trains; an attacker trains, and also infers labels from what it observes."""

OWNER_LIMITS = (
    *("align-method", "align-max-ids"),
    *("train-epochs", "train-until", "train-attackers", "train-alignment", "label-key"),
    *("predict-rows-per-day", "predict-data"),
)
"""Keys of `--node-config` with which an owner limits what is asked of the node."""

STEPPED: ContextVar[bool] = ContextVar("STEPPED", default=False)
"""True if the handler that runs here was called by a simulation within this process (`LocalGrid`)."""


def in_simulation() -> bool:
    """Return True if this process simulates its node: as a Ray actor of Flower's runtime, or with all parties in it.

    Neither an offer nor a node config decides that: an offer is the label party's, and Flower's own examples start real
    SuperNodes with a `partition-id`.
    """
    if STEPPED.get():
        return True
    ray = sys.modules.get("ray")  # Flower's runtime has imported it; a SuperNode has not
    return ray is not None and ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None


@dataclass(frozen=True)
class Node:
    """A SuperNode, as `--node-config` describes it.

    Attributes
    ----------
    party : str
        The node's party; empty for a simulated node.
    role : str
        "feature" (the default) or "attacker"; a simulated node takes its role from the run config.
    data_path : str
        Folder with the party's part of the prepared data.
    out : str
        Folder of the party's weights and, for an attacker, of its measurements; empty: its state folder.
    partition : int
        Its number among a simulation's nodes; -1 for a deployed node.
    """

    party: str = ""
    role: str = ROLES[0]
    data_path: str = ""
    out: str = ""
    partition: int = -1

    @classmethod
    def of(cls, node_config: Mapping[str, object]) -> Node:
        """Return the node of a node config; its other keys are left to the app.

        Raises
        ------
        ConfigError
            When there is no such role, or a limit is misspelt, which would be none.
        SetupError
            When the node is not simulated and names no party.
        """
        _check_limits(node_config)
        given = {key: str(node_config.get(key, "")) for key in ("party", "role", "data-path", "out")}
        role = given["role"] or ROLES[0]
        if role not in ROLES:
            raise ConfigError(f"this node's role is {role!r}; --node-config allows role='feature' or role='attacker'")
        if not given["party"] and not in_simulation():
            raise SetupError(
                "this node has no party: start its SuperNode with --node-config \"party='NAME' data-path='/FOLDER'\"; "
                "without a party its owner has not allowed any data here, and the run config does not decide that"
            )
        partition = -1 if given["party"] else int(str(node_config.get("partition-id", -1)))
        out = str(Path(given["out"]).expanduser()) if given["out"] else ""
        return cls(given["party"], role, given["data-path"], out, partition)

    @property
    def deployed(self) -> bool:
        """True if its owner named a party: then it is on a host of its own, whatever the label party's offer claims."""
        return bool(self.party)

    def simulated_as(self, names: Sequence[str], *, offered: bool) -> str:
        """Return the party of a simulated node, "" for a spare one.

        Raises
        ------
        ConfigError
            When the label party offers no simulation: it is deployed, and this node is not.
        """
        if not offered or self.partition < 0:
            raise ConfigError("this node is simulated, and the label party is not: start both by the same `flwr run`")
        return names[self.partition] if self.partition < len(names) else ""

    def view(self, config: Config) -> Config:
        """Return the part of a run's configuration that holds at this node.

        At a deployed node the data is the owner's, whatever the run config names, and only an attacker attacks.
        """
        if not self.deployed:
            return config
        data = config.data.model_copy(update={"path": self.data_path, "options": {}})
        attack = config.attack
        if self.role != "attacker":  # the limits too: they are refused without an attack
            attack = attack.without_attacks()
        return config.model_copy(update={"data": data, "attack": attack})

    def require_data(self) -> None:
        """Refuse to open anything but prepared data that the owner of a deployed node named.

        Raises
        ------
        SetupError
            When the node config names no folder, or one without a manifest.
        """
        if not self.deployed:
            return
        if not self.data_path:
            raise SetupError(
                f"the node of party {self.party!r} names no data: start its SuperNode with --node-config "
                f"\"party='{self.party}' data-path='/FOLDER'\"; `flower-vfl data part` writes the folder"
            )
        if not (Path(self.data_path).expanduser() / MANIFEST).is_file():
            raise SetupError(
                f"data-path of the node of party {self.party!r} is no prepared data (there is no {MANIFEST} in it, or "
                "its SuperNode may not read it); `flower-vfl data prepare` and `flower-vfl data part` write it"
            )


def _check_limits(node_config: Mapping[str, object]) -> None:
    for key in node_config:
        written = key.lower().replace("_", "-")
        meant = written.startswith(("align-", "train-", "predict-")) or get_close_matches(
            written, ["label-key"], 1, 0.75
        )
        if meant and key not in OWNER_LIMITS:
            raise ConfigError(f"--node-config has no key {key!r}; {suggestion(written, OWNER_LIMITS)}")


def with_data_of_this_host(config: Config) -> Config:
    """Return the label party's configuration with the data that its host's environment names.

    Raises
    ------
    ConfigError
        When the run config of a deployment names a path: it reaches every party.
    """
    path = os.environ.get(DATA_VARIABLE, "")
    if config.data.path:
        raise ConfigError(
            f"data.path is {config.data.path!r} in a run config, which reaches every party; set data.path to '' and "
            f"name the label party's data in {DATA_VARIABLE}, in the environment of the SuperLink (or of its SuperExec)"
        )
    return config.model_copy(update={"data": config.data.model_copy(update={"path": path})})
