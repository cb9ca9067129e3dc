"""What the owner of a host said about it: whose node it is, what it does there and where its data lies.

The run config comes from the label party and reaches everybody. On a host of its own a party reads nothing that the run
config names, and its role is its own to choose.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from flower_vfl.config import Config
from flower_vfl.data.store.layout import MANIFEST
from flower_vfl.errors import ConfigError, SetupError

DATA_VARIABLE = "FLOWER_VFL_DATA"
"""Names the label party's one prepared folder, in the environment of its ServerApp."""

ROLES = ("feature", "attacker")
"""A feature party learns; an attacker learns and also reads labels from what it sees."""

STEPPED: ContextVar[bool] = ContextVar("STEPPED", default=False)
"""Whether the handler that runs here was called by a simulation within this process (`LocalGrid`)."""


def in_simulation() -> bool:
    """Say whether this process simulates its node: as a Ray actor of Flower's runtime, or with all parties in it.

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
        Whose node it is; empty for a simulated node.
    role : str
        "feature" (the default) or "attacker"; a simulated node does what the run config says.
    data_path : str
        Folder with the party's part of the prepared data.
    out : str
        Where the party keeps its weights and, as an attacker, what it measured; empty: its state folder.
    partition : int
        Which of a simulation's nodes it is; -1 for a deployed node.
    """

    party: str = ""
    role: str = ROLES[0]
    data_path: str = ""
    out: str = ""
    partition: int = -1

    @classmethod
    def of(cls, node_config: Mapping[str, object]) -> Node:
        """Read a node config; keys that are not ours are left to the app.

        Raises
        ------
        ConfigError
            When there is no such role.
        SetupError
            When the node is not simulated and names no party.
        """
        given = {key: str(node_config.get(key, "")) for key in ("party", "role", "data-path", "out")}
        role = given["role"] or ROLES[0]
        if role not in ROLES:
            raise ConfigError(f"this node's role is {role!r}; --node-config allows role='feature' or role='attacker'")
        if not given["party"] and not in_simulation():
            raise SetupError(
                "this node has no party: start its SuperNode with --node-config \"party='NAME' data-path='/FOLDER'\"; "
                "without a party its owner has not said what may be read here, and the run config does not decide that"
            )
        partition = -1 if given["party"] else int(str(node_config.get("partition-id", -1)))
        out = str(Path(given["out"]).expanduser()) if given["out"] else ""
        return cls(given["party"], role, given["data-path"], out, partition)

    @property
    def deployed(self) -> bool:
        """Whether its owner named a party: then it stands on a host of its own, whatever the label party says."""
        return bool(self.party)

    def simulated_as(self, names: Sequence[str], *, offered: bool) -> str:
        """Return the party that a simulated node is, "" for a spare one.

        Raises
        ------
        ConfigError
            When the label party offers no simulation: it is deployed, this node is not.
        """
        if not offered or self.partition < 0:
            raise ConfigError("this node is simulated, and the label party is not: start both by the same `flwr run`")
        return names[self.partition] if self.partition < len(names) else ""

    def view(self, config: Config) -> Config:
        """Return what of a run's configuration holds at this node.

        At a deployed node the data is the owner's, whatever the run config names, and only an attacker attacks.
        """
        if not self.deployed:
            return config
        data = config.data.model_copy(update={"path": self.data_path, "options": {}})
        attack = config.attack
        if self.role != "attacker":  # a limit of the leak without an attack is no configuration
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
