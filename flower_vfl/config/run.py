"""The run configuration: one model, read from TOML, overridden by `--set` and by Flower's flat run config."""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Self, get_args, get_origin

import tomli_w
from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo

from flower_vfl.config.parsing import Value, parse_defenses, read_json, read_list, scalar, typed
from flower_vfl.config.schema import (
    AUTO_STEPS,
    STEPS_ON_NOISE,
    AlignConfig,
    AttackConfig,
    CheckpointConfig,
    DataConfig,
    ModelConfig,
    PartiesConfig,
    PrivacyConfig,
    TrainingConfig,
    TransportConfig,
)
from flower_vfl.config.section import Section, require_plain
from flower_vfl.errors import MOST_NAMES, ConfigError, nearest, plain_reason, suggestion

_PRESETS = files("flower_vfl") / "simulations" / "presets"

SWEEP = "-sweep"
"""Suffix of the names of the presets of sweeps."""

_DEVICES = re.compile(r"cpu|cuda(:\d+)?")


class Config(Section):
    """The configuration of a run; it reaches every party, so nothing in it is secret."""

    seed: int = Field(default=0, ge=0, lt=2**63, description="seed of a simulation's secrets")
    schedule_seed: int = Field(default=-1, ge=-1, lt=2**63, description="seed of the order of batches; -1: `seed`")
    device: str = Field(default="cpu", description="torch device of models")
    precision: Literal["float32", "tf32", "bfloat16"] = Field(
        default="float32",
        description="of a network's products: whole single precision, TF32 on a GPU, or bfloat16; all else is exact",
    )
    threads: int = Field(
        default=1, ge=0, le=1024, description="threads of PyTorch, NumPy and SciPy in each party; 0: their own choice"
    )
    sinks: list[Literal["tensorboard", "wandb", "mlflow"]] = Field(default_factory=list, description="live trackers")
    metrics_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="port at which the label party serves metrics for Prometheus, on its loopback only; 0: off",
    )
    baselines: Literal["auto", "on", "off"] = Field(
        default="auto",
        description='in a simulation, what scikit-learn reaches on each party\'s columns and on all; "auto": on tables '
        "of one's own",
    )
    data: DataConfig = Field(default_factory=DataConfig)
    parties: PartiesConfig = Field(default_factory=PartiesConfig)
    model: ModelConfig = Field(default_factory=ModelConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    attack: AttackConfig = Field(default_factory=AttackConfig)
    transport: TransportConfig = Field(default_factory=TransportConfig)
    align: AlignConfig = Field(default_factory=AlignConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    privacy: PrivacyConfig = Field(default_factory=PrivacyConfig)
    defenses: list[dict[str, Any]] = Field(
        default_factory=list,
        description="what changes the gradients before they leave the label party, outermost first: names that "
        "`flower-vfl methods` lists, such as 'iso(t=1.0)', or 'none'",
    )

    @field_validator("device")
    @classmethod
    def _device(cls, device: str) -> str:
        if not _DEVICES.fullmatch(device):
            raise ValueError(f"{device!r} is no device: cpu, cuda or cuda:N")
        return device

    @field_validator("defenses", mode="before")
    @classmethod
    def _calls(cls, defenses: Any) -> Any:
        """Parse defenses that are written as calls, `"iso(t=5.0), max_norm"`, alone or in a list."""
        if isinstance(defenses, str):
            return parse_defenses(defenses)
        if not isinstance(defenses, list):
            return defenses
        return [call for entry in defenses for call in (parse_defenses(entry) if isinstance(entry, str) else [entry])]

    @field_validator("defenses")
    @classmethod
    def _defenses(cls, defenses: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for entry in defenses:
            if not isinstance(entry.get("name"), str):
                raise ValueError(f"each defense needs a name: {entry} has none")
        require_plain(defenses)
        return defenses

    @model_validator(mode="after")
    def _combinations(self) -> Self:
        if self.precision == "tf32" and self.device == "cpu":
            raise ValueError(
                "precision is 'tf32', which only GPUs have, and device is 'cpu': set device to 'cuda', or precision "
                "to 'float32' or 'bfloat16'"
            )
        if self.training.order == "time":
            _check_time_order(self.training)
        if not self.training.gradients:
            _check_no_gradients(self)
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
            unknown = set(named) - set(self.parties.features)
            if self.parties.features and unknown:
                raise ValueError(
                    f"{key} names {', '.join(sorted(unknown))}; parties.features has {', '.join(self.parties.features)}"
                )
        if self.parties.named["parties.colluding"] and not self.attack.monitor:
            raise ValueError("parties.colluding is measured by the monitor: set attack.monitor to true")
        return self

    def cadence(self, steps: int) -> int:
        """Return the distance between two scored steps, in a run of `steps` steps: `AttackConfig.cadence`.

        Where patience may end training, it follows from the steps of the shortest run: that, too, must have enough
        scored steps for a 95 % quantile.

        Examples
        --------
        >>> patient = Config(training={"epochs": 30, "patience": 2})
        >>> Config(training={"epochs": 30}).cadence(780), patient.cadence(780), patient.cadence(78_000)
        (12, 1, 16)
        """
        epochs, patience = self.training.epochs, self.training.patience
        certain = patience + 1 if 0 < patience < epochs else epochs
        return self.attack.cadence(steps * certain // max(epochs, 1))

    def fitted(self, rows: int) -> Self:
        """Return the configuration with each "auto" replaced by a number for `rows` training rows.

        A bound on the leak of a training holds for a number of epochs that was set beforehand: nothing ends it early.
        Where labels are randomised, it is a small one.
        Nor does anything without gradients, where the time of the end would depend on labels; nothing is sent there, so
        attacks are off.
        """
        training, attack = self.training, self.attack
        randomised = any(entry["name"] in NEVER_ENDS_EARLY for entry in self.defenses)
        fixed = attack.max_bound < 1.0 or randomised
        if (fixed or not training.gradients) and training.patience < 0:
            training = training.model_copy(update={"patience": 0})
        if not training.gradients:
            attack = attack.without_attacks().model_copy(update={"snapshots": []})
        training = training.fitted(rows, STEPS_ON_NOISE if randomised else AUTO_STEPS)
        fitted = {"training": training, "model": self.model.fitted(rows), "attack": attack}
        return self.model_copy(update=fitted)

    @property
    def shared_seed(self) -> int:
        """The schedule seed that is in force."""
        return self.seed if self.schedule_seed < 0 else self.schedule_seed


NEVER_ENDS_EARLY = ("local_head",)
"""Defenses whose proof holds for a number of epochs that was set beforehand, and which refuse any patience."""

FITTED = (
    *(f"training.{name}" for name in ("epochs", "batch_size", "learning_rate", "patience")),
    "model.numeric_embedding",
)
"""Keys that are "auto" by default and get a value by the number of training rows."""


def _check_no_gradients(config: Config) -> None:
    """Refuse settings that have no effect, or would reveal labels, where no gradient is sent."""
    training, attack = config.training, config.attack
    refused = {
        "defenses": (bool(config.defenses), "to []: there is nothing to defend"),
        "training.patience": (training.patience > 0, "to 0: the moment of the end would tell of labels"),
        "training.order": (training.order == "time", 'to "random": a day is scored before its rows are kept'),
        "training.refit": (training.refit > 0, "to 0: all of training.epochs are passes over kept embeddings"),
        "attack.max_leak": (attack.max_leak < 1.0, "to 1: there is no leak to limit"),
        "attack.max_bound": (attack.max_bound < 1.0, "to 1: there is no leak to limit"),
    }
    wrong = [f"set {key} {why}" for key, (given, why) in refused.items() if given]
    if wrong:
        raise ValueError(f"training.gradients is false, so no gradient leaves the label party; {'; '.join(wrong)}")


def _check_time_order(training: TrainingConfig) -> None:
    """Refuse settings that do not fit one pass over the rows in time order."""
    refused = {
        "training.pretrain": (training.pretrain, 0, "a bottom model must not see the rows of later days"),
        "training.refit": (training.refit, 0, "each row is trained on once"),
        "training.epochs": (training.epochs or 1, 1, "each row is trained on once"),
        "training.validation": (training.validation, 0.0, "each day is scored before it is trained on"),
        "training.patience": (max(training.patience, 0), 0, "no day can be compared with another"),
    }
    wrong = [
        f"{key} is {given}, set it to {needed}: {why}"
        for key, (given, needed, why) in refused.items()
        if given != needed
    ]
    if wrong:
        raise ValueError(f'training.order "time" goes through the days once; {"; ".join(wrong)}')


def leaf_fields(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield the dotted path of each leaf, and its field."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from leaf_fields(kind, f"{prefix}{name}.")
        else:
            yield prefix + name, field


def leaf_paths(model: type[BaseModel] = Config) -> dict[str, Any]:
    """Return each leaf's annotation by its dotted path, e.g. int for "training.batch_size"."""
    return {path: field.annotation for path, field in leaf_fields(model)}


def _flat(path: str) -> str:
    return re.sub(r"[._]", "-", path)


@cache
def _leaves() -> tuple[dict[str, Any], dict[str, str]]:
    """Return `leaf_paths`, and the dotted path of each leaf by its kebab-case key."""
    leaves = leaf_paths()
    return leaves, {_flat(path): path for path in leaves}


def _path_of(key: str) -> tuple[str, str]:
    """Return the dotted path of the leaf that `key` names and, for dictionaries, the entry in it."""
    leaves, flat = _leaves()
    flat_key = _flat(key)
    if flat_key in flat:
        return flat[flat_key], ""
    for path, kind in leaves.items():
        if get_origin(kind) is dict and flat_key.startswith(_flat(path) + "-"):
            return path, key[len(path) + 1 :]
    raise ConfigError(f"there is no configuration key {key!r}; {_key_hint(key, leaves)}")


def _key_hint(key: str, known: Mapping[str, Any]) -> str:
    """Return a hint for an unknown key: the nearest keys, or the command that lists all."""
    listed = len(known) > MOST_NAMES and not nearest(key, known)
    section, dot, _ = key.partition(".")
    no_section = dot and not any(path.startswith(f"{section}.") for path in known)
    meant = suggestion(key, known)
    if listed:
        meant = f"none of the {len(known)} keys is near: `flower-vfl config` lists them"
    if "data.options" in known and (listed or key.startswith("data.") or no_section):
        meant += f"; an option of the data set is set as data.options.{key.removeprefix('data.')}"
    return meant


def canonical_key(key: str) -> str:
    """Return the dotted path of a dotted or kebab-case key.

    Raises
    ------
    ConfigError
        When there is no such key; the message gives the nearest one.

    Examples
    --------
    >>> canonical_key("training-batch-size"), canonical_key("data.options.test_days")
    ('training.batch_size', 'data.options.test_days')
    """
    path, entry = _path_of(key)
    return f"{path}.{entry}" if entry else path


def _coerce(path: str, kind: Any, value: Any) -> Any:
    """Return a flat value (`--set`, Flower's run config) in the type of its leaf."""
    if not isinstance(value, str):
        if get_origin(kind) is list:
            return list(value) if isinstance(value, list | tuple) else [value]
        return value
    if path == "defenses":
        return read_json(path, value) if value.lstrip().startswith("[") else value
    if get_origin(kind) is dict:
        return read_json(path, value or "{}")
    if get_origin(kind) is list:
        return read_list(get_args(kind)[0], value)
    return typed(kind, value)


def with_overrides(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the nested `values` with flat `overrides` (dotted or kebab-case keys) put in."""
    result: dict[str, Any] = copy.deepcopy(dict(values))
    leaves, _ = _leaves()
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


def explain(error: ValidationError, model: type[BaseModel] = Config) -> str:
    """Return a message with the given value and the allowed ones, for each field that is wrong."""
    lines = []
    for problem in error.errors():
        path = ".".join(str(part) for part in problem["loc"]) or "configuration"
        if problem["type"] == "extra_forbidden":
            leaves = leaf_paths(model)
            sections = [] if "." in path else {name.split(".")[0] for name in leaves if "." in name}
            near = get_close_matches(path, sections, n=1, cutoff=0.8)
            meant = f"did you mean [{near[0]}]?" if near else _key_hint(path, leaves)
            lines.append(f"{path}: there is no such key; {meant}")
        else:
            given = "" if problem["type"] == "value_error" and not problem["loc"] else f", given {problem['input']!r}"
            lines.append(f"{path}: {plain_reason(problem['msg'])}{given}")
    return "; ".join(lines)


def build_config(values: Mapping[str, Any], overrides: Mapping[str, Any] | None = None) -> Config:
    """Check nested `values` with flat `overrides` and return the configuration.

    Raises
    ------
    ConfigError
        When a field is wrong; the message names each, the given value and the allowed ones.
    """
    try:
        return Config.model_validate(with_overrides(values, overrides or {}))
    except ValidationError as error:
        raise ConfigError(explain(error)) from None


def preset_names() -> list[str]:
    """Return the names of the presets of runs that come with the package."""
    return [name for name in _presets() if not name.endswith(SWEEP)]


def sweep_names() -> list[str]:
    """Return the names of the presets of sweeps that come with the package."""
    return [name for name in _presets() if name.endswith(SWEEP)]


def preset_text(name: str) -> str:
    """Return the TOML of a preset, of runs or of a sweep, that comes with the package."""
    return (_PRESETS / f"{name}.toml").read_text(encoding="utf8")


def read_source(
    source: str, presets: Sequence[str], *, preset: str, file: str, folders: bool = True
) -> tuple[str, dict[str, Any]]:
    """Return the text and the values of one of these presets, by name, or of a TOML file, by path.

    Parameters
    ----------
    source : str
        The name, or a path ending in .toml.
    presets : Sequence[str]
        The names that may be given.
    preset, file : str
        Terms for such a preset and such a file, for messages.
    folders : bool
        True if a folder of prepared data can be given, too, for messages.

    Raises
    ------
    ConfigError
        When there is no such preset or file, or it is no TOML.
    """
    other = f"a path ending in .toml{' or a folder of prepared data' if folders else ''}"
    if source.endswith(".toml"):
        if not Path(source).is_file():
            raise ConfigError(f"there is no {file} {source!r}")
        try:
            text = Path(source).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{source} cannot be read: {error}") from None
    elif source in presets:
        text = preset_text(source)
    elif Path(source).is_file():
        raise ConfigError(
            f"{source} does not end in .toml, so it is no {file}; `flower-vfl init` writes one for tables of your own"
        )
    elif folders and Path(source).is_dir():
        raise ConfigError(f"the folder {source} is no prepared data set; see `flower-vfl data prepare`")
    elif source != Path(source).name or Path(source).is_dir():
        found = f"{source} is a folder" if Path(source).is_dir() else f"there is no {source}"
        raise ConfigError(f"{found}; name a {preset} or {other}")
    else:
        near = nearest(source, presets)
        meant = (
            suggestion(source, presets, other=other) if near else f"`flower-vfl presets` lists them; or give {other}"
        )
        raise ConfigError(f"there is no {preset} {source!r}; {meant}")
    try:
        return text, tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source} is no valid TOML: {error}") from None


def _presets() -> list[str]:
    return sorted(entry.name.removesuffix(".toml") for entry in _PRESETS.iterdir() if entry.name.endswith(".toml"))


def load_config(source: str, overrides: Mapping[str, Any] | None = None) -> Config:
    """Return the configuration of a preset, a TOML file or a folder of prepared data, with flat overrides.

    Raises
    ------
    ConfigError
        When there is no such preset, file or folder, or when something in it is wrong.
    """
    if (manifest := Path(source) / "manifest.json").is_file():
        return build_config({"data": {"name": _name_of(manifest), "path": source}}, overrides)
    if source in sweep_names():
        raise ConfigError(f"{source!r} is a sweep, many runs: flower-vfl sweep {source}")
    _, values = read_source(source, preset_names(), preset="preset", file="configuration file")
    return build_config(values, overrides)


def _name_of(manifest: Path) -> str:
    """Return the name of the data set that was prepared in a folder."""
    try:
        return str(json.loads(manifest.read_text(encoding="utf8"))["name"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ConfigError(f"{manifest} is no manifest of prepared data: {error}") from None


def to_toml(config: Config) -> str:
    """Return the whole configuration as TOML, which `load_config` reads back to an equal one."""
    return tomli_w.dumps(config.model_dump())


def to_run_config(config: Config) -> dict[str, Value]:
    """Return the configuration as Flower's flat run config: kebab-case keys, scalar values."""
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
    """Return a finished run's configuration with the device, threads and transport of `run_config`, for this host."""
    changed = {
        key: value
        for key, value in run_config.items()
        if value != "" and (key in ("device", "threads") or key.startswith("transport-"))
    }
    return build_config(config.model_dump(), changed) if changed else config


def from_run_config(run_config: Mapping[str, Value]) -> Config:
    """Return the configuration of Flower's flat run config: `preset`, overridden by all other keys that are not empty.

    `out`, `job`, `resume` and `predict-*` are for the ServerApp and no part of a configuration. `preset` is no path:
    whoever starts a run would make each host read one of its files.
    """
    values = {key: value for key, value in run_config.items() if value != ""}
    preset = str(values.pop("preset", ""))
    for key in [key for key in values if key in ("out", "job", "resume") or key.startswith("predict-")]:
        del values[key]
    if preset and preset not in preset_names():
        known = suggestion(preset, preset_names())
        raise ConfigError(f"the run config's preset is {preset!r}; {known}; it is the name of a preset and no path")
    return build_config(tomllib.loads(preset_text(preset)) if preset else {}, values)
