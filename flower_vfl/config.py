"""The run configuration: one model, read from TOML, overridden by `--set` and by Flower's flat run config."""

from __future__ import annotations

import copy
import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Self, get_args, get_origin

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from flower_vfl.errors import ConfigError
from flower_vfl.parsing import Value, parse_calls, parse_defenses, read_json, read_list, scalar, typed
from flower_vfl.registry import suggestion

ALL = "all"
_EVERY_ADDRESS = ("0.0.0.0", "::", "[::]")


def _require_plain(value: Any) -> None:
    """Refuse what TOML and JSON do not both hold."""
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise ValueError("keys must be text")
        value = list(value.values())
    if isinstance(value, list):
        for entry in value:
            _require_plain(entry)
    elif not isinstance(value, Value) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"{value!r} is neither text nor a finite number, true, false, a list or a table")


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True, allow_inf_nan=False)


class DataConfig(_Section):
    """Which data, and from where."""

    name: str = Field(default="census-income", min_length=1, description="data set; `flower-vfl data list` shows them")
    path: str = Field(
        default="",
        description="folder or file of the raw or prepared data; empty: where the data set's package puts it",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="options of the data set's loader")

    @field_validator("options")
    @classmethod
    def _plain_options(cls, options: dict[str, Any]) -> dict[str, Any]:
        _require_plain(options)
        return options


class PartiesConfig(_Section):
    """Who takes part."""

    features: list[str] = Field(
        default_factory=list, description="feature parties, 1 to 32; empty: all but the label party"
    )
    label_features: bool = Field(default=True, description="the label party's own columns are used, if it has any")
    attackers: list[str] = Field(default_factory=list, description="feature parties that also look; empty: all of them")
    colluding: list[str] = Field(
        default_factory=lambda: [ALL],
        description='groups that put together what they see, e.g. "a+b", attacked by the monitor; "all": all attackers',
    )

    @field_validator("features", "attackers")
    @classmethod
    def _names(cls, names: list[str]) -> list[str]:
        for name in names:
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", name):
                raise ValueError(f"{name!r} is no party name: letters, digits, '-' and '_', 63 at most")
        if len(set(names)) != len(names):
            raise ValueError("a party is named twice")
        return names

    @field_validator("colluding")
    @classmethod
    def _groups(cls, groups: list[str]) -> list[str]:
        for group in groups:
            if group != ALL and len(cls._names(group.split("+"))) < 2:
                raise ValueError(f'{group!r} is no group of parties: join two or more names with "+", as in "a+b"')
        if len({frozenset(group.split("+")) for group in groups}) != len(groups):
            raise ValueError("a group is named twice")
        return groups

    @property
    def named(self) -> dict[str, list[str]]:
        """The feature parties that `attackers` and `colluding` speak of, by the key that names them."""
        groups = [group for group in self.colluding if group != ALL]
        return {
            "parties.attackers": self.attackers,
            "parties.colluding": [name for group in groups for name in group.split("+")],
        }

    def coalitions(self, features: Sequence[str]) -> list[str]:
        """Return the groups of two and more that collude, in a run with these feature parties.

        Examples
        --------
        >>> PartiesConfig().coalitions(["a", "b", "c"])
        ['a+b+c']
        """
        everybody = self.attackers or list(features)
        found = ["+".join(everybody) if group == ALL else group for group in self.colluding]
        return list(dict.fromkeys(group for group in found if "+" in group))


class ModelConfig(_Section):
    """The shape of the network."""

    network: str = Field(
        default="auto",
        min_length=1,
        description="architecture: a perceptron for tables and convolutions for images, or that of a paper",
    )
    split: str = Field(
        default="", description="stage of the paper's network behind which it is cut; empty: the paper's choice"
    )
    cut: int = Field(
        default=0,
        ge=0,
        le=65536,
        description="width of each party's embedding at the cut layer, of feature maps: channels; 0: the network's own",
    )
    embedding_width: int = Field(
        default=8, ge=1, le=4096, description="width of the embedding of one category, or of one word"
    )
    bottom: list[int] = Field(default_factory=lambda: [128], description="hidden layers of a bottom model, for tables")
    channels: list[int] = Field(
        default_factory=lambda: [16],
        min_length=1,
        description="for images: convolutions of a bottom model before its last",
    )
    pools: int = Field(
        default=1, ge=0, description="for images: convolutions, from the first, with a pooling behind them"
    )
    top_channels: list[int] = Field(
        default_factory=list, description="for images: convolutions of the top model before its hidden layers"
    )
    top: list[int] = Field(default_factory=lambda: [64], description="hidden layers of the top model")
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0, description="dropout in bottom models")
    fusion: Literal["concat", "sum", "mean"] = Field(
        default="concat", description="how the parties' embeddings are joined"
    )

    @field_validator("bottom", "channels", "top_channels", "top")
    @classmethod
    def _widths(cls, widths: list[int]) -> list[int]:
        if any(width < 1 for width in widths):
            raise ValueError(f"layer widths must be at least 1, given {widths}")
        return widths


class TrainingConfig(_Section):
    """How the network is trained."""

    epochs: int = Field(default=6, ge=1, description="passes over the training rows")
    batch_size: int = Field(default=1024, ge=1, description="rows of one step")
    eval_batch_size: int = Field(default=8192, ge=1, description="rows of one evaluation message")
    optimizer: Literal["adam", "adamw", "sgd"] = Field(default="adam", description="optimizer of every party")
    learning_rate: float = Field(default=1e-3, gt=0.0, description="learning rate")
    schedule: Literal["constant", "cosine", "step", "linear"] = Field(
        default="constant", description="learning-rate schedule"
    )
    weight_decay: float = Field(default=0.0, ge=0.0, description="weight decay of dense weights")
    class_weights: Literal["none", "balanced"] = Field(default="none", description="weights of the classes in the loss")
    clip_norm: float = Field(
        default=0.0, ge=0.0, description="largest norm of the batch's cut gradient and of the top's; 0: off"
    )
    validation: float = Field(default=0.1, ge=0.0, lt=1.0, description="part of the training rows kept for validation")
    patience: int = Field(default=0, ge=0, description="stop after so many epochs without a better validation; 0: off")


class AttackConfig(_Section):
    """What is attacked while training, and where it is logged."""

    names: list[str] = Field(
        default_factory=lambda: ["norm"],
        description='attacks that attackers and the monitor run, e.g. "norm" or "hint(k=5,measure=inner)"',
    )
    layers: list[str] = Field(
        default_factory=list,
        description="layers of their own models that attackers look at; empty: the cut and what the model watches",
    )
    every: int = Field(default=1, ge=1, description="log each so many steps")
    monitor: bool = Field(default=True, description="the label party attacks its own outgoing messages")
    audit: bool = Field(default=True, description="in a simulation, true labels go to the attackers' scorers")
    max_leak: float = Field(
        default=1.0,
        gt=0.5,
        le=1.0,
        description="limit of the monitor's q95 leak AUC of an epoch, oracle attacks included; 1: off",
    )
    on_leak: Literal["stop", "warn"] = Field(default="stop", description="what happens when the limit is passed")
    snapshots: list[int] = Field(
        default_factory=lambda: [100, 200, 300, 400, 500],
        description="after so many steps the label party keeps, for its own report, what the gradients are made of",
    )

    embeddings: int = Field(
        default=500,
        ge=0,
        le=5000,
        description="embeddings of test rows that the label party keeps with their labels, for its own report; 0: none",
    )
    rebuilt: float = Field(
        default=0.8,
        gt=0.0,
        le=1.0,
        description="a completed model counts as the federation's at this share of the way from chance to its utility",
    )

    @field_validator("snapshots")
    @classmethod
    def _steps(cls, steps: list[int]) -> list[int]:
        if any(step < 0 for step in steps):
            raise ValueError(f"steps are at least 0, given {steps}; [] keeps no snapshot")
        return steps

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The attacks, each as its name and its parameters.

        Raises
        ------
        ConfigError
            When a name is not understood.
        """
        return [call for name in self.names for call in parse_calls(name, "attack.names", 'e.g. "hint(k=5)"')]


class TransportConfig(_Section):
    """How messages cross the cut."""

    kind: Literal["inproc", "stream", "messages"] = Field(default="inproc", description="carrier of the records")
    in_flight: int = Field(
        default=1,
        ge=0,
        le=64,
        description="steps under way at once; 1 is exact, 0: as many as the link is found to need",
    )
    wire_dtype: Literal["exact", "float16", "bfloat16"] = Field(
        default="exact", description="number format on the wire"
    )
    fallback: Literal["none", "messages"] = Field(
        default="none",
        description="carrier for a party that cannot reach the session endpoint of 'stream'",
    )
    host: str = Field(
        default="127.0.0.1", min_length=1, description="address at which the label party's session endpoint listens"
    )
    advertise: str = Field(default="", description="address that feature parties dial; empty: `host`")
    port: int = Field(default=0, ge=0, le=65535, description="port of the session endpoint; 0: a free one")
    connect_timeout: float = Field(
        default=60.0, gt=0.0, description="seconds for parties to arrive, from when the last node connected"
    )
    max_frame_mib: int = Field(
        default=64, ge=1, le=1024, description="largest message that the session endpoint takes, MiB"
    )
    step_timeout: float = Field(default=600.0, gt=0.0, description="seconds to wait for one answer")
    reconnect_timeout: float = Field(
        default=30.0, ge=0.0, description="seconds for a broken stream to come back and go on where it was"
    )
    rejoin_timeout: float = Field(
        default=300.0,
        ge=0.0,
        description="seconds for a party that died to come back; all go on from their last checkpoint",
    )

    @model_validator(mode="after")
    def _dialled(self) -> Self:
        if self.host in _EVERY_ADDRESS and not self.advertise:
            raise ValueError(
                f"transport.host {self.host!r} listens on every address of the host, and no party can dial that: name "
                "one address in transport.host, or in transport.advertise what parties dial"
            )
        return self


class AlignConfig(_Section):
    """How IDs are aligned before training: `flower-vfl align`."""

    method: Literal["psi", "hash"] = Field(
        default="psi", description='"psi": private; "hash": salted hashes, which the label party can try IDs against'
    )
    max_ids: int = Field(default=10_000_000, ge=1, description="most IDs that a feature party may have")
    message_mib: int = Field(default=32, ge=1, le=512, description="largest Flower message of an alignment, MiB")
    processes: int = Field(default=0, ge=0, description="processes of a party for curve arithmetic; 0: one a core")
    timeout: float = Field(default=3600.0, gt=0.0, description="seconds to wait for one answer of a party")


class CheckpointConfig(_Section):
    """What every party keeps on its own disk, so that a run can go on after an interruption."""

    every: int = Field(default=0, ge=-1, description="steps between two checkpoints; 0: each epoch; -1: off")
    keep: int = Field(default=2, ge=2, description="how many checkpoints each party keeps")


class Config(_Section):
    """Everything a run needs to know; it reaches every party, so nothing in it is secret."""

    seed: int = Field(default=0, ge=0, lt=2**63, description="seed of a simulation's secrets")
    schedule_seed: int = Field(default=-1, ge=-1, lt=2**63, description="seed of the order of batches; -1: `seed`")
    device: str = Field(default="cpu", description="torch device of models")
    threads: int = Field(default=1, ge=0, description="torch threads of each party; 0: leave torch's own choice")
    sinks: list[Literal["tensorboard", "wandb", "mlflow"]] = Field(default_factory=list, description="live trackers")
    data: DataConfig = Field(default_factory=DataConfig)
    parties: PartiesConfig = Field(default_factory=PartiesConfig)
    model: ModelConfig = Field(default_factory=ModelConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    attack: AttackConfig = Field(default_factory=AttackConfig)
    transport: TransportConfig = Field(default_factory=TransportConfig)
    align: AlignConfig = Field(default_factory=AlignConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    defenses: list[dict[str, Any]] = Field(default_factory=list, description='outermost first, e.g. "iso(t=1.0)"')

    @field_validator("device")
    @classmethod
    def _device(cls, device: str) -> str:
        if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
            raise ValueError(f"{device!r} is no device: cpu, cuda or cuda:N")
        return device

    @field_validator("defenses")
    @classmethod
    def _defenses(cls, defenses: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for entry in defenses:
            if not isinstance(entry.get("name"), str):
                raise ValueError(f"each defense needs a name, given {entry}")
        _require_plain(defenses)
        return defenses

    @model_validator(mode="after")
    def _combinations(self) -> Self:
        if self.training.validation == 0.0 and self.training.patience > 0:
            raise ValueError("training.patience needs a validation part: set training.validation above 0")
        if not self.attack.monitor and self.attack.max_leak < 1.0:
            raise ValueError("attack.max_leak is measured by the monitor: set attack.monitor to true")
        if not self.attack.names and self.attack.max_leak < 1.0:
            raise ValueError("attack.max_leak is measured by attacks: name at least one in attack.names")
        if self.transport.wire_dtype != "exact" and self.transport.kind == "inproc":
            raise ValueError(
                f"transport.wire_dtype is {self.transport.wire_dtype!r}, but transport.kind 'inproc' has no wire: "
                "set transport.kind to 'stream' or 'messages', or transport.wire_dtype to 'exact'"
            )
        for key, named in self.parties.named.items():
            strangers = set(named) - set(self.parties.features)
            if self.parties.features and strangers:
                raise ValueError(
                    f"{key} names {', '.join(sorted(strangers))}; "
                    f"parties.features has {', '.join(self.parties.features)}"
                )
        if self.parties.named["parties.colluding"] and not self.attack.monitor:
            raise ValueError("parties.colluding is measured by the monitor: set attack.monitor to true")
        return self

    @property
    def shared_seed(self) -> int:
        """The schedule seed that is in force."""
        return self.seed if self.schedule_seed < 0 else self.schedule_seed


def leaf_paths(model: type[BaseModel] = Config, prefix: str = "") -> dict[str, Any]:
    """Map each leaf's dotted path to its annotation, e.g. "training.batch_size" to int."""
    leaves: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            leaves |= leaf_paths(kind, f"{prefix}{name}.")
        else:
            leaves[prefix + name] = kind
    return leaves


def _flat(path: str) -> str:
    return re.sub(r"[._]", "-", path)


def _path_of(key: str) -> tuple[str, str]:
    """Return the leaf's dotted path that `key` means and, for dictionaries, the entry in it."""
    leaves = leaf_paths()
    flat = {_flat(path): path for path in leaves}
    wanted = _flat(key)
    if wanted in flat:
        return flat[wanted], ""
    for path, kind in leaves.items():
        if get_origin(kind) is dict and wanted.startswith(_flat(path) + "-"):
            return path, key[len(path) + 1 :]
    raise ConfigError(f"there is no configuration key {key!r}; {suggestion(key, leaves)}")


def _coerce(path: str, kind: Any, value: Any) -> Any:
    """Turn a flat value (`--set`, Flower's run config) into what the leaf wants."""
    if not isinstance(value, str):
        return [value] if get_origin(kind) is list and not isinstance(value, list) else value
    if path == "defenses":
        return read_json(path, value) if value.lstrip().startswith("[") else parse_defenses(value)
    if get_origin(kind) is dict:
        return read_json(path, value or "{}")
    if get_origin(kind) is list:
        return read_list(get_args(kind)[0], value)
    return typed(kind, value)


def with_overrides(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the nested `values` with flat `overrides` (dotted or kebab-case keys) put in."""
    result: dict[str, Any] = copy.deepcopy(dict(values))
    leaves = leaf_paths()
    for key, value in overrides.items():
        path, entry = _path_of(key)
        *sections, leaf = path.split(".")
        place = result
        for section in [*sections, leaf] if entry else sections:
            place = place.setdefault(section, {})
            if not isinstance(place, dict):
                raise ConfigError(f"{section} must be a table, given {place!r}")
        if entry:
            place[entry] = scalar(value) if isinstance(value, str) else value
        else:
            place[leaf] = _coerce(path, leaves[path], value)
    return result


def _explain(error: ValidationError) -> str:
    lines = []
    for problem in error.errors():
        path = ".".join(str(part) for part in problem["loc"]) or "configuration"
        if problem["type"] == "extra_forbidden":
            lines.append(f"{path}: there is no such key; {suggestion(path, leaf_paths())}")
        else:
            given = "" if problem["type"] == "value_error" and not problem["loc"] else f", given {problem['input']!r}"
            lines.append(f"{path}: {problem['msg'].removeprefix('Value error, ')}{given}")
    return "; ".join(lines)


def build_config(values: Mapping[str, Any], overrides: Mapping[str, Any] | None = None) -> Config:
    """Check nested `values` with flat `overrides` and return the configuration.

    Raises
    ------
    ConfigError
        Naming each field that is wrong, what was given and what is allowed.
    """
    try:
        return Config.model_validate(with_overrides(values, overrides or {}))
    except ValidationError as error:
        raise ConfigError(_explain(error)) from None


def preset_names() -> list[str]:
    """Return the names of the presets that come with the package."""
    folder = files("flower_vfl") / "simulations" / "presets"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load_config(source: str, overrides: Mapping[str, Any] | None = None) -> Config:
    """Read a preset by name or a TOML file by path, with flat overrides.

    Raises
    ------
    ConfigError
        When there is no such preset or file, or when something in it is wrong.
    """
    if source.endswith(".toml"):
        path = Path(source)
        if not path.is_file():
            raise ConfigError(f"there is no configuration file {source!r}")
        try:
            text = path.read_text(encoding="utf8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{source} cannot be read: {error}") from None
    elif source in preset_names():
        text = (files("flower_vfl") / "simulations" / "presets" / f"{source}.toml").read_text(encoding="utf8")
    else:
        raise ConfigError(
            f"there is no preset {source!r}; {suggestion(source, preset_names())}, or a path ending in .toml"
        )
    try:
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{source} is no valid TOML: {error}") from None
    return build_config(values, overrides)


def to_toml(config: Config) -> str:
    """Write the whole configuration as TOML; `load_config` reads it back to an equal one."""
    return tomli_w.dumps(config.model_dump())


def to_run_config(config: Config) -> dict[str, Value]:
    """Write the configuration as Flower's flat run config: kebab-case keys, scalar values."""
    nested = config.model_dump()
    flat: dict[str, Value] = {}
    for path in leaf_paths():
        value: Any = nested
        for part in path.split("."):
            value = value[part]
        # A list as JSON: an empty one must not read as "not given", nor a party named 1 as a number.
        flat[_flat(path)] = json.dumps(value) if isinstance(value, list | dict) else value
    return flat


def of_this_host(config: Config, run_config: Mapping[str, Value]) -> Config:
    """Return a finished run's configuration with what another host may need otherwise: device, threads, transport."""
    changed = {
        key: value
        for key, value in run_config.items()
        if value != "" and (key in ("device", "threads") or key.startswith("transport-"))
    }
    return build_config(config.model_dump(), changed) if changed else config


def from_run_config(run_config: Mapping[str, Value]) -> Config:
    """Read Flower's flat run config: `preset`, and whatever else is not the empty string overrides it.

    `out`, `job` and `predict-*` are for the ServerApp and no part of a configuration.
    """
    values = {key: value for key, value in run_config.items() if value != ""}
    preset = str(values.pop("preset", ""))
    for key in [key for key in values if key in ("out", "job", "resume") or key.startswith("predict-")]:
        del values[key]
    return load_config(preset, values) if preset else build_config({}, values)
