"""Lookup of attacks and defenses by their names.

They may also come from other installed packages: by an entry point under a short name, or as
`module:Class`. Nothing of another package is imported before it is named or listed.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeGuard, TypeVar, cast

from flower_vfl.errors import ConfigError, FlowerVflError, suggestion

T = TypeVar("T")

BUILT_IN = "built-in"
METHOD_NAME = re.compile(r"[A-Za-z_][\w-]*", re.ASCII)
"""Pattern of the `name` of an attack or a defense."""

_PART = r"(?!__)[A-Za-z_]\w*"
_REFERENCE = re.compile(rf"{_PART}(\.{_PART})*:{_PART}(\.{_PART})*", re.ASCII)
_PACKAGE = "flower_vfl"


_INSTALL = "the package that has it must be installed on every host where it runs, or its folder be in PYTHONPATH"


class Named(Protocol):
    """A method, with its name in configurations and results as an attribute of its class."""

    name: ClassVar[str]

    @property
    def params(self) -> dict[str, Any]:
        """Parameters of the method, as results show them."""


M = TypeVar("M", bound=Named)


@lru_cache(maxsize=16)
def _entry_points(group: str, places: tuple[tuple[str, int], ...]) -> tuple[EntryPoint, ...]:
    """Return a group's entry points, which takes 5 ms, cached by Python's path and the change times of its folders."""
    return tuple(entry_points(group=group))


def _change_time(place: str) -> int:
    """Return the time of a folder's last change, in nanoseconds: installing or removing a package changes it."""
    try:
        return os.stat(place or os.curdir).st_mtime_ns
    except OSError:
        return 0


def from_elsewhere(method: type) -> dict[str, str]:
    """Return the class of a method that is not built-in, as an entry of results; empty for a built-in one.

    Examples
    --------
    >>> from fractions import Fraction
    >>> from_elsewhere(Fraction), from_elsewhere(Methods)
    ({'class': 'fractions:Fraction'}, {})
    """
    ours = method.__module__.partition(".")[0] == _PACKAGE
    return {} if ours else {"class": f"{method.__module__}:{method.__qualname__}"}


@dataclass(frozen=True, slots=True)
class Listed(Generic[M]):
    """A method that a configuration can name, or the reason why it cannot be used.

    Attributes
    ----------
    name
        Name in a configuration.
    source
        "built-in", or the distribution that has it, with its version.
    method
        The class; None where it cannot be loaded.
    problem
        Reason why it cannot be used; empty if it can.
    """

    name: str
    source: str
    method: type[M] | None
    problem: str = ""


def is_number(value: object) -> TypeGuard[float]:
    """Return True if a parameter is an int or a float, which results can hold; a bool is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def parameters(method: type) -> Mapping[str, Parameter]:
    """Return the parameters of a class's constructor, by name.

    For a class without an `__init__` of its own Python would parse a text, and if two threads do so at once, one of
    them sometimes ends with a SystemError (CPython 3.11).

    Raises
    ------
    TypeError, ValueError
        When the class is written in C, or has an unreadable signature.
    """
    has_constructor = any("__init__" in vars(base) or "__new__" in vars(base) for base in method.__mro__[:-1])
    return signature(method).parameters if has_constructor else {}


def _unknown_parameter(method: type, given: int, params: Iterable[str]) -> str:
    """Return a message about the first of `params` that a class does not have behind its first `given`; else empty."""
    try:
        known = list(parameters(method).values())[given:]
    except (TypeError, ValueError):
        return ""
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in known):
        return ""
    return _not_among([parameter.name for parameter in known], params)


def _not_made(kind: str, name: str, params: object, why: str) -> str:
    """Return the message that a method cannot be made, before and after it is loaded."""
    return f"the {kind} {name!r} cannot be made with {params}: {why}"


def _not_among(names: Sequence[str], params: Iterable[str]) -> str:
    """Return a message about the first of `params` that is none of `names`; else empty."""
    unknown = [name for name in params if name not in names]
    return f"there is no parameter {unknown[0]!r}; {suggestion(unknown[0], names)}" if unknown else ""


def _written_parameters(reference: str) -> list[str] | None:
    """Return the constructor's parameters of a class of this package, from its source; None where it inherits them.

    To import a method takes seconds, because it imports torch.
    """
    module, _, name = reference.partition(":")
    source = Path(__file__).parent.joinpath(*module.split(".")[1:]).with_suffix(".py").read_text("utf8")
    (method,) = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == name)
    for node in method.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__" and node.args.kwarg is None:
            return [argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)]
    return None


@dataclass(frozen=True, slots=True)
class MethodNames:
    """The names of one kind of method, built-in ones and those of other installed packages; no method is loaded.

    Attributes
    ----------
    kind
        "attack" or "defense", for messages.
    group
        Entry-point group in which other packages declare their methods.
    builtin
        The module and class of each built-in method, as ``module:Class``.
    own_arguments
        Number of the constructor's first parameters that no configuration sets.
    """

    kind: str
    group: str
    builtin: Mapping[str, str]
    own_arguments: int = 0

    def check(self, given: str, params: Mapping[str, object] | None = None) -> None:
        """Refuse an unknown name, a parameter that a built-in method does not have, or a module that is nowhere.

        Nothing is imported. Parameters that a class inherits are not checked, nor what is in the module.

        Raises
        ------
        ConfigError
            When the name, a parameter or the module is unknown; the message gives the nearest names.

        Examples
        --------
        >>> MethodNames("tool", "nobody.tools", {"saw": "tools:Saw"}).check("sam")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        flower_vfl.errors.ConfigError: there is no tool named 'sam'; did you mean 'saw'? Allowed: saw, ...
        """
        known = self.known()
        if ":" in given:
            _check_module(given)
        elif given not in known:
            raise ConfigError(
                f"there is no {self.kind} named {given!r}; "
                f"{suggestion(given, known, other='module:Class of what is installed')}"
            )
        if not params or given not in self.builtin:
            return
        written = _written_parameters(self.builtin[given])
        if written is not None and (why := _not_among(written[1 + self.own_arguments :], params)):
            raise ConfigError(_not_made(self.kind, given, params, why))

    def known(self) -> set[str]:
        """Return all names."""
        return {*self.builtin, *self.declared()}

    def declared(self) -> dict[str, list[EntryPoint]]:
        """Return the entry points of other packages by name, without importing anything."""
        declared: dict[str, list[EntryPoint]] = {}
        for entry in _entry_points(self.group, tuple((place, _change_time(place)) for place in sys.path)):
            declared.setdefault(entry.name, []).append(entry)
        return declared


class Methods(Generic[M]):
    """All methods of one kind that a configuration can name: built-in ones and those of other installed packages.

    Parameters
    ----------
    names : MethodNames
        Their names.
    bases : tuple of type
        Base classes; a method must subclass at least one of them.
    """

    def __init__(self, names: MethodNames, bases: tuple[type[M], ...]) -> None:
        self.names, self.kind = names, names.kind
        self._bases = bases

    @cached_property
    def builtin(self) -> dict[str, type[M]]:
        """The built-in methods by name; they are loaded at the first access."""
        return {name: self._load(reference, name) for name, reference in self.names.builtin.items()}

    def find(self, given: str) -> type[M]:
        """Return the class of a name or a `module:Class`.

        Raises
        ------
        ConfigError
            When no package or more than one has the name, or the class cannot be loaded or is no method of this kind.
        """
        if ":" in given:
            return self._referenced(given)
        self.names.check(given)
        declared = self.names.declared()
        clash = self._clash(given, declared)
        if clash:
            raise ConfigError(clash)
        return self.builtin[given] if given in self.builtin else self._of_entry(declared[given][0])

    def find_all(self, given: Iterable[str]) -> list[type[M]]:
        """Return the classes of one run, which results must be able to tell apart by their names.

        Raises
        ------
        ConfigError
            As `find` does, and when two classes have one name.
        """
        seen: dict[str, tuple[str, type[M]]] = {}
        methods = []
        for words in given:
            method = self.find(words)
            first, other = seen.setdefault(method.name, (words, method))
            if other is not method:
                raise ConfigError(
                    f"{first} and {words} both have the name {method.name!r}, and results could not tell one from the "
                    "other: change the `name` of one class"
                )
            methods.append(method)
        return methods

    def make(self, method: type[M], /, *arguments: Any, **params: Any) -> M:
        """Return a method that is made with parameters from a configuration.

        Raises
        ------
        ConfigError
            When it does not have or refuses a parameter, or its `params` lack one or cannot be held by results.
        """
        try:
            made = cast("Callable[..., M]", method)(*arguments, **params)
        except (TypeError, ValueError, AttributeError) as error:
            if isinstance(error, FlowerVflError):
                raise
            why = _unknown_parameter(method, len(arguments), params) or str(error)
            raise ConfigError(_not_made(self.kind, method.name, params, why)) from error
        try:
            json.dumps(made.params, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"the {self.kind} {method.name!r} shows `params` that result.json cannot hold: {error}; show numbers, "
                "texts, and lists or dictionaries of them"
            ) from error
        if not isinstance(vars(made).get("label", ""), str):
            raise ConfigError(f"the {self.kind} {method.name!r} sets `self.label`, its name in logs: use another name")
        missing = sorted(params.keys() - made.params.keys())
        if missing:
            raise ConfigError(
                f"the {self.kind} {method.name!r} does not show {' and '.join(missing)} in its `params`, and results "
                "could not tell its settings apart: return them there"
            )
        return made

    def listed(self) -> list[Listed[M]]:
        """Return all methods with a short name, built-in ones first; an unusable one has the reason."""
        declared = self.names.declared()
        rows = [Listed(name, BUILT_IN, cls, self._clash(name, declared)) for name, cls in self.builtin.items()]
        for name in sorted(declared):
            for entry in declared[name]:
                try:
                    method, problem = self._of_entry(entry), self._clash(name, declared)
                except ConfigError as error:
                    method, problem = None, str(error)
                rows.append(Listed(name, _owner(entry), method, problem))
        return rows

    def _clash(self, name: str, declared: Mapping[str, list[EntryPoint]]) -> str:
        """Return the reason why a name is ambiguous; empty where it is not."""
        owners = [_PACKAGE] if name in self.builtin else []
        owners += [_owner(entry) for entry in declared.get(name, [])]
        if len(owners) < 2:
            return ""
        return (
            f"the {self.kind} {name!r} is declared by {' and by '.join(owners)}: uninstall all but one of them, or say "
            "which class you mean as module:Class"
        )

    def _referenced(self, given: str) -> type[M]:
        method = self._load(given, given)
        if self.builtin.get(method.name, method) is not method:
            raise ConfigError(
                f"{given} has the name {method.name!r}, which is that of a built-in {self.kind}; results could not "
                "tell one from the other: change the `name` of the class"
            )
        return method

    def _of_entry(self, entry: EntryPoint) -> type[M]:
        words = f"the {self.kind} {entry.name!r} of {_owner(entry)}"
        method = self._load(entry.value.strip(), f"{words}, {entry.value},")
        if method.name != entry.name:
            raise ConfigError(
                f"{words} is a class with the name {method.name!r}, which results would show: give both the same name"
            )
        return method

    def _load(self, reference: str, words: str) -> type[M]:
        """Return the class that a reference names by identifiers with dots; nothing of it is evaluated."""
        if not _REFERENCE.fullmatch(reference):
            raise ConfigError(
                f"{words} is no module:Class: write identifiers with dots between them, such as "
                f"my_package.{self.kind}s:MyClass"
            )
        module, _, path = reference.partition(":")
        try:
            found: object = import_module(module)
            for part in path.split("."):
                found = getattr(found, part)
        except (Exception, SystemExit) as error:
            raise ConfigError(
                f"{words} cannot be loaded: {type(error).__name__}: {' '.join(str(error).split())}; {_INSTALL}"
            ) from error
        return self._checked(found, words)

    def _checked(self, found: object, words: str) -> type[M]:
        if not (isinstance(found, type) and issubclass(found, self._bases)):
            homes = " or ".join(f"{_public_module(base)}.{base.__name__}" for base in self._bases)
            raise ConfigError(f"{words} is {found!r:.200}; a subclass of {homes} is needed")
        missing = sorted(getattr(found, "__abstractmethods__", ()))
        if missing:
            raise ConfigError(f"{words} is abstract: the class must define {', '.join(missing)}")
        name: object = getattr(found, "name", None)
        if not (isinstance(name, str) and METHOD_NAME.fullmatch(name)):
            raise ConfigError(
                f"{words} has the name {name!r}; its class needs a `name` of letters, digits, '_' and '-' for results"
            )
        return found


def _check_module(reference: str) -> None:
    """Refuse a `module:Class` whose outermost package is nowhere; the package itself is not imported."""
    package = reference.partition(":")[0].partition(".")[0]
    if package.isidentifier() and package not in sys.modules and find_spec(package) is None:
        raise ConfigError(f"{reference} cannot be loaded: No module named {package!r}; {_INSTALL}")


def _owner(entry: EntryPoint) -> str:
    """Return the distribution that declares an entry point, with its version."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "an unknown distribution"


def _public_module(base: type) -> str:
    """Return the package that exports a base class of ours, or the module that defines a class of another package."""
    parts = base.__module__.split(".")
    return ".".join(parts[:2] if parts[0] == "flower_vfl" else parts)


ATTACK_NAMES = MethodNames(
    "attack",
    "flower_vfl.attacks",
    {
        "norm": "flower_vfl.attacks.gradient.norm:NormAttack",
        "cosine": "flower_vfl.attacks.gradient.cosine:CosineAttack",
        "inner_product": "flower_vfl.attacks.gradient.inner_product:InnerProductAttack",
        "direction_count": "flower_vfl.attacks.gradient.direction_count:DirectionCountAttack",
        "hint": "flower_vfl.attacks.gradient.hint:HintAttack",
        "residual": "flower_vfl.attacks.gradient.residual:ResidualAttack",
        "direction": "flower_vfl.attacks.gradient.direction:DirectionAttack",
        "shell": "flower_vfl.attacks.gradient.shell:ShellAttack",
        "gradient_clustering": "flower_vfl.attacks.gradient.gradient_clustering:GradientClusteringAttack",
        "remembered_norm": "flower_vfl.attacks.longitudinal.norm:RememberedNormAttack",
        "remembered_direction": "flower_vfl.attacks.longitudinal.direction:RememberedDirectionAttack",
        "remembered_batches": "flower_vfl.attacks.longitudinal.direction:RememberedBatchesAttack",
        "remembered_scales": "flower_vfl.attacks.longitudinal.scales:RememberedScalesAttack",
        "remembered_difference": "flower_vfl.attacks.longitudinal.difference:RememberedDifferenceAttack",
        "remembered_hint": "flower_vfl.attacks.longitudinal.hint:RememberedHintAttack",
        "remembered_fit": "flower_vfl.attacks.longitudinal.linear:RememberedFitAttack",
        "remembered_quadratic": "flower_vfl.attacks.longitudinal.quadratic:RememberedQuadraticAttack",
        "remembered_network": "flower_vfl.attacks.longitudinal.network:RememberedNetworkAttack",
        "spectral": "flower_vfl.attacks.embedding.spectral:SpectralAttack",
        "clustering": "flower_vfl.attacks.embedding.clustering:ClusteringAttack",
        "model_completion": "flower_vfl.attacks.embedding.model_completion:ModelCompletionAttack",
        "embedding_reader": "flower_vfl.attacks.embedding.embedding_reader:EmbeddingReaderAttack",
        "joint_regression": "flower_vfl.attacks.joint.regression:JointRegressionAttack",
        "joint_reader": "flower_vfl.attacks.joint.reader:JointReaderAttack",
    },
)
"""The built-in attacks and those of other installed packages."""

DEFENSE_NAMES = MethodNames(
    "defense",
    "flower_vfl.defenses",
    {
        "distance_correlation": "flower_vfl.strategies.embeddings.distance_correlation:DistanceCorrelation",
        "iso": "flower_vfl.strategies.gradients.iso:Iso",
        "label_dp": "flower_vfl.strategies.labels.label_dp:LabelDP",
        "local_head": "flower_vfl.strategies.labels.local_head:LocalHead",
        "marvell": "flower_vfl.strategies.gradients.marvell.isotropic:Marvell",
        "marvell_full": "flower_vfl.strategies.gradients.marvell.full:MarvellFull",
        "max_norm": "flower_vfl.strategies.gradients.max_norm:MaxNorm",
        "potential_energy": "flower_vfl.strategies.embeddings.potential_energy:PotentialEnergy",
    },
    own_arguments=1,  # the strategy that a defense wraps
)
"""The built-in defenses and those of other installed packages."""
