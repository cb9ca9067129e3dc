"""The resources that each feature party's process asks of Ray in `--engine flower`: `--resources`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Self

from pydantic import Field, ValidationError, model_validator

from flower_vfl.config import explain
from flower_vfl.config.parsing import scalar
from flower_vfl.config.section import Section
from flower_vfl.errors import ConfigError, suggestion

_EXAMPLE = '"cpus=2, gpus=0.25" for all feature parties, or "NAME: cpus=4, gpus=1, node=10.0.0.7" for one'
_PIN = 0.001
"""Amount of the resource `node:ADDRESS`, of which each node has 1, that places a process on that node."""


class Resources(Section):
    """The resources of the process of one feature party."""

    cpus: float = Field(default=1.0, gt=0.0, le=1024.0, description="processors that Ray sets aside for it")
    gpus: float = Field(default=0.0, ge=0.0, le=64.0, description="GPUs, 0.25: a quarter of one; it sees no others")
    node: str = Field(default="", description="address of the node on which it runs; empty: Ray chooses")

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.gpus > 1.0 and not self.gpus.is_integer():
            raise ValueError(f"gpus is {self.gpus:g}; above 1 it must be a whole number")
        return self

    @property
    def bundle(self) -> dict[str, float]:
        """The resources as a Ray bundle.

        Examples
        --------
        >>> Resources(gpus=0.5, node="10.0.0.7").bundle
        {'CPU': 1.0, 'GPU': 0.5, 'node:10.0.0.7': 0.001}
        """
        asked = {"CPU": self.cpus, "GPU": self.gpus, f"node:{self.node}": _PIN if self.node else 0.0}
        return {name: amount for name, amount in asked.items() if amount}


def read_resources(texts: Sequence[str], parties: Sequence[str]) -> tuple[Resources, ...]:
    """Return the resources of each feature party, in the order of the parties.

    Parameters
    ----------
    texts : Sequence[str]
        Each `KEY=VALUE, ...` for all parties, or `NAME: KEY=VALUE, ...` for one, which takes precedence. Keys are those
        of `Resources`.
    parties : Sequence[str]
        Names of the feature parties.

    Raises
    ------
    ConfigError
        When a text has another form, or names an unknown party.

    Examples
    --------
    >>> [party.cpus for party in read_resources(["b: cpus=4", "cpus=2"], ["a", "b"])]
    [2.0, 4.0]
    """
    given: dict[str, dict[str, object]] = {}
    for text in texts:
        match = re.fullmatch(r"\s*(?:([\w-]+)\s*:)?([^=]+=.*)", text)
        if match is None:
            raise ConfigError(f"--resources {text!r} is not understood; write {_EXAMPLE}")
        party = match[1] or ""
        if party and party not in parties:
            raise ConfigError(
                f"--resources {text!r}: no feature party is called {party!r}; {suggestion(party, parties)}"
            )
        for part in match[2].split(","):
            key, equals, value = (word.strip() for word in part.partition("="))
            if not equals or key in given.setdefault(party, {}):
                what = f"{key!r} is given twice" if equals else f"{key!r} is no key=value"
                raise ConfigError(f"--resources {text!r}: {what}; write {_EXAMPLE}")
            given[party][key] = value if key == "node" else scalar(value)
    try:
        return tuple(Resources.model_validate({**given.get("", {}), **given.get(party, {})}) for party in parties)
    except ValidationError as error:
        raise ConfigError(f"--resources {explain(error, Resources)}") from None
