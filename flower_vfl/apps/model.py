"""The saved model of a party: its weights, and a card for checking that data, code and partners still fit.

One safetensors file a party, on the party's own disk. Its header holds the card: no pickle, nothing that is executed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from flower_vfl.apps.folder import WEIGHTS
from flower_vfl.apps.run_state import LABEL
from flower_vfl.checkpoint import save_tensors
from flower_vfl.config import Config, build_config
from flower_vfl.data.store.dataset import Alignment, Dataset, FeatureSpec
from flower_vfl.data.store.memory import VerticalData
from flower_vfl.data.store.scoring import ScoredColumns, encoding_digest
from flower_vfl.errors import ConfigError, DataError, InputError
from flower_vfl.files import writing_to
from flower_vfl.nn.digest import state_digest
from flower_vfl.version import package_version

EARLIER = "earlier"
"""Folder with the weights of a deployed party's earlier trainings, a folder each."""

_CARD = "flower-vfl"
_SCHEMA = 1
_SPEC = ("numeric", "cardinalities", "shape", "pixels", "vocabulary")


@dataclass(frozen=True)
class ModelCard:
    """The card of saved weights: the facts that must fit before they are used.

    Attributes
    ----------
    party : str
        The party's name; "label" for the label party.
    session : str
        The session that trained them, the same at all parties.
    config : Config
        The run's configuration as this party read it.
    alignment : Alignment
        Alignment of the training data.
    spec : FeatureSpec or None
        Shape of the party's features; None for a label party without any.
    encoding : str
        Digest of the encoding of its columns; empty where they were not encoded.
    factories : Mapping[str, str]
        The function that made each model, as "module:name".
    classes : tuple of str
        At the label party: the names of the classes.
    features : tuple of str
        At the label party: the feature parties, in the order in which their embeddings are joined.
    version : str
        Version of flower-vfl.
    answer : tuple of str
        At the label party: the logits of its network for fixed inputs, see `flower_vfl.training.probe`.
    """

    party: str
    session: str
    config: Config
    alignment: Alignment
    spec: FeatureSpec | None
    encoding: str
    factories: Mapping[str, str]
    classes: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    version: str = ""
    answer: tuple[str, ...] = ()


@dataclass(frozen=True)
class Model:
    """A party's weights with their card and their digest."""

    card: ModelCard
    tensors: Mapping[str, Tensor]
    digest: str

    def load_into(self, module: nn.Module) -> None:
        """Put the weights into a module.

        Raises
        ------
        ConfigError
            When the module has other weights than those that were trained.
        """
        try:
            module.load_state_dict(dict(self.tensors))
        except RuntimeError as error:
            raise ConfigError(
                f"the weights of {self.card.party!r} do not fit its model: {' '.join(str(error).split())[:500]}; use "
                "the code that trained them"
            ) from None


def make_card(
    party: str,
    session: str,
    config: Config,
    dataset: VerticalData,
    factories: Mapping[str, Callable[..., nn.Module]],
    *,
    table: str,
    classes: tuple[str, ...] = (),
    features: tuple[str, ...] = (),
) -> ModelCard:
    """Return the card of a party with the columns of the data's party `table`; empty for none."""
    return ModelCard(
        party,
        session,
        config,
        dataset.alignment,
        dataset.party(table).spec if table else None,
        encoding_digest(dataset, table) if table else "",
        {name: qualified(factory) for name, factory in factories.items()},
        classes,
        features,
        package_version("flower-vfl"),
    )


def check_factories(card: ModelCard, factories: Mapping[str, Callable[..., nn.Module]]) -> None:
    """Refuse code that did not make the model of these weights.

    Raises
    ------
    ConfigError
        When another factory made it.
    """
    for name, factory in factories.items():
        if qualified(factory) != card.factories.get(name):
            raise ConfigError(
                f"the {name} model of {card.party!r} was made by {card.factories.get(name)}, here it is "
                f"{qualified(factory)}: use the app that trained it (`flower-vfl predict --app FOLDER`), or "
                "flower_vfl.predict with its factories"
            )


def check_data(card: ModelCard, dataset: VerticalData) -> None:
    """Refuse data that the weights were not trained on.

    Raises
    ------
    DataError
        When its rows differ.
    """
    if dataset.alignment != card.alignment:
        raise DataError(
            f"the rows of the data {dataset.name!r} are others than {_trained(card)} was trained on: "
            f"{_rows(dataset.alignment)}, in training {_rows(card.alignment)}; "
            + (_changed_files(card) or "open the data of the training, and give other rows as new data (--data)")
        )


def _rows(alignment: Alignment) -> str:
    return f"{alignment.rows} + {alignment.test_rows}"


def _trained(card: ModelCard) -> str:
    """Return the party of a card in words: the label party by its name in the options of its data, if it has one."""
    own = card.party if card.party != LABEL else str(card.config.data.options.get("label_party", ""))
    return f"party {own!r}" if own else "the label party"


def _changed_files(card: ModelCard) -> str:
    """Return what to do about a file of the training that was changed since; "" for data of another kind."""
    options = card.config.data.options
    files = {f"files.{party}": path for party, path in dict(options.get("files") or {}).items()}
    files |= {key: options[key] for key in ("labels_file",) if options.get(key)}
    if card.config.data.name != "files" or not files:
        return ""
    named = ", ".join(f"{key} = {path}" for key, path in files.items())
    return (
        f"a file of the training was changed since, one of {named}. Predictions need these files as they were: put a "
        "copy from then in its place, or train again; a folder that `flower-vfl data prepare` leaves is a copy to "
        "train from"
    )


def check_features(card: ModelCard, features: ScoredColumns) -> ScoredColumns:
    """Return features that were encoded as those of training.

    Raises
    ------
    DataError
        When they were not.
    """
    if features.spec != card.spec or features.encoding != card.encoding:
        raw = "new rows of a prepared folder are encoded as that folder says: give their raw files with --data"
        changed = _changed_files(card)
        raise DataError(
            f"the columns of {_trained(card)} are encoded otherwise than in training; "
            + (f"{changed}. Otherwise, {raw}" if changed else f"{raw}, or open the data of the training")
        )
    return features


def class_names(dataset: VerticalData, classes: int) -> tuple[str, ...]:
    """Return the names of the classes; their numbers where the data names none."""
    return dataset.class_names if isinstance(dataset, Dataset) else tuple(str(number) for number in range(classes))


def qualified(factory: Callable[..., Any]) -> str:
    """Return the qualified name of a factory, "module:name"."""
    kind = factory if hasattr(factory, "__qualname__") else type(factory)
    return f"{kind.__module__}:{kind.__qualname__}"


def model_path(folder: Path, party: str) -> Path:
    """Return the path of a party's weights in the folder of its run."""
    return folder / WEIGHTS / f"{party}.safetensors"


def save_model(folder: Path, card: ModelCard, module: nn.Module) -> None:
    """Write a party's final weights and their card to `weights/<party>.safetensors`, atomically."""
    target = model_path(folder, card.party)
    with writing_to(target):
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in module.state_dict().items()}
    content = {"schema": _SCHEMA, "weights": state_digest(tensors), **_card_to_json(card)}
    save_tensors(target, tensors, {_CARD: json.dumps(content, allow_nan=False)})


def keep_earlier(folder: Path, card: ModelCard) -> Path | None:
    """Move a party's weights of another training to a folder of their own, and return it; None without any.

    The label party of that training may still ask for predictions, and has no copy.
    """
    path = model_path(folder, card.party)
    if not path.is_file():
        return None
    with suppress(DataError):  # of another version, so of another training
        if load_card(path).session == card.session:
            return None
    kept = next(place for number in count(1) if not (place := folder / EARLIER / str(number)).exists())
    target = model_path(kept, card.party)
    with writing_to(target):
        target.parent.mkdir(mode=0o700, parents=True)
        path.replace(target)
    return kept


def folders_of_models(folder: Path) -> list[Path]:
    """Return the folder of a party's latest training, and those of its earlier ones."""
    return [folder, *sorted((folder / EARLIER).glob("*"))]


def load_card(path: Path) -> ModelCard:
    """Return the card of a party's weights without loading them.

    Raises
    ------
    DataError
        When the file is missing, is no model of flower-vfl, or is of another version of flower-vfl.
    """
    return _read(path, weights=False)[0]


def load_model(path: Path) -> Model:
    """Return a party's model, its weights checked against their digest.

    Raises
    ------
    DataError
        As for `load_card`, and when the weights are not those that were written.
    """
    card, noted, tensors = _read(path, weights=True)
    digest = state_digest(tensors)
    if digest != noted:
        raise DataError(f"{path} is damaged: its weights have the digest {digest[:12]}, noted is {noted[:12]}")
    return Model(card, tensors, digest)


def _read(path: Path, *, weights: bool) -> tuple[ModelCard, str, dict[str, Tensor]]:
    if not path.is_file():
        raise DataError(f"there are no weights of a finished training at {path}")
    try:
        with safe_open(path, framework="pt") as file:
            content = json.loads((file.metadata() or {})[_CARD])
            tensors = {name: file.get_tensor(name) for name in file.keys()} if weights else {}  # noqa: SIM118
        version = str(content["version"])
        if content["schema"] == _SCHEMA and _minor(version) == _minor(package_version("flower-vfl")):
            return _card_from_json(content), str(content["weights"]), tensors
    except (
        *(OSError, SafetensorError, InputError, LookupError, TypeError, ValueError, AttributeError),
        *(OverflowError, RecursionError),
    ) as error:
        raise DataError(f"{path} holds no weights that can be used: {error}") from None
    raise DataError(
        f"{path} was written by flower-vfl {version}, this is {package_version('flower-vfl')}: install that version, "
        "or train again"
    )


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def _card_to_json(card: ModelCard) -> dict[str, Any]:
    return {
        **{name: getattr(card, name) for name in ("party", "session", "encoding", "version")},
        "config": card.config.model_dump(),
        "alignment": {name: getattr(card.alignment, name) for name in ("rows", "test_rows", "digest")},
        "spec": None if card.spec is None else {name: getattr(card.spec, name) for name in _SPEC},
        "factories": dict(card.factories),
        "classes": list(card.classes),
        "features": list(card.features),
        "answer": list(card.answer),
    }


def _card_from_json(content: Mapping[str, Any]) -> ModelCard:
    spec, alignment = content["spec"], content["alignment"]
    return ModelCard(
        str(content["party"]),
        str(content["session"]),
        build_config(content["config"]),
        Alignment(int(alignment["rows"]), int(alignment["test_rows"]), str(alignment["digest"])),
        None if spec is None else FeatureSpec(**{name: _value(spec[name]) for name in _SPEC}),
        str(content["encoding"]),
        {str(name): str(factory) for name, factory in content["factories"].items()},
        tuple(map(str, content["classes"])),
        tuple(map(str, content["features"])),
        str(content["version"]),
        tuple(map(str, content.get("answer", ()))),
    )


def _value(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
