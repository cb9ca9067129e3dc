"""Settings of the study on embeddings: data, networks, defenses and attacks, in two sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

Sections = Mapping[str, Mapping[str, Any] | list[dict[str, Any]]]
"""Parts of a configuration: the values of a section, or the defenses."""

ALPHAS = (0.25, 0.5, 1, 2, 4, 8, 16, 32)
FLIPS = (0.01, 0.02, 0.04, 0.08, 0.16)
WIDTHS = (4, 8, 16, 32, 64, 128)


def energy(*alphas: float, **more: Any) -> dict[str, Sections]:
    """Return settings of potential energy."""
    name = "pe_sum" if more.get("reduction") == "sum" else "pe"
    return {
        f"{name}-{alpha:g}": {"defenses": [{"name": "potential_energy", "alpha": float(alpha), **more}]}
        for alpha in alphas
    }


def correlation(*alphas: float) -> dict[str, Sections]:
    """Return settings of the squared distance correlation on normalised rows, to which the paper's alphas belong."""
    given = {"name": "distance_correlation", "form": "squared", "normalise": True}
    return {f"dcor-{alpha:g}": {"defenses": [{**given, "alpha": float(alpha)}]} for alpha in alphas}


def flips(*rates: float) -> dict[str, Sections]:
    """Return settings of label differential privacy."""
    return {f"label_dp-{rate:g}": {"defenses": [{"name": "label_dp", "flip": rate}]} for rate in rates}


def noise(*, ratios: Iterable[float] = (), strengths: Iterable[float] = ()) -> dict[str, Sections]:
    """Return settings of noise on gradients: the authors' `ratio` of iso (t = ratio ** 2), max_norm, Marvell's s."""
    return {
        **{f"iso-{ratio:g}": {"defenses": [{"name": "iso", "t": float(ratio**2)}]} for ratio in ratios},
        "max_norm": {"defenses": [{"name": "max_norm"}]},
        **{f"marvell-{s:g}": {"defenses": [{"name": "marvell", "s": float(s)}]} for s in strengths},
    }


NONE: dict[str, Sections] = {"none": {}}
PLAIN: dict[str, Sections] = {"dcor_plain": {"defenses": [{"name": "distance_correlation"}]}}
"""Distance correlation as it is when nothing is set: alpha 0.05, not squared, rows as they are."""


def completions(*known: int, **more: Any) -> list[str]:
    """Return completion attacks with these numbers of leaked labels a class, on raw rows and on normalised ones."""
    params = "".join(f",{name}={value}" for name, value in more.items())
    return [f"model_completion(k={k}{params}{rows})" for k in known for rows in ("", ",normalise=true")]


CLUSTERING = ["clustering", "clustering(normalise=true)"]


@dataclass(frozen=True)
class Study:
    """A study: its trainings, and the attacks on them.

    Attributes
    ----------
    preset : str
        Preset of the undefended run.
    settings : Mapping[str, Sections]
        Changes to the preset, by name; of one defense weakest first.
    attacks : list of str
        Attacks on the trained model.
    seeds : int
        Number of seeds.
    changes : Sections
        Changes to the preset in every setting.
    layers : tuple of str
        Attacked layers; empty: the cut and the layers that the model names.
    first : tuple of str
        Settings that are run before the others, so that an interrupted seed has them.
    small : Sections
        Changes of a quick run.
    """

    preset: str
    settings: Mapping[str, Sections]
    attacks: list[str]
    seeds: int
    changes: Sections = field(default_factory=dict)
    layers: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    small: Sections = field(default_factory=dict)

    @property
    def order(self) -> list[str]:
        """The settings in the order in which they are run."""
        return [*self.first, *(name for name in self.settings if name not in self.first)]


_FEW_ROWS: Sections = {"data": {"options": {"limit": 1000}}}
_THREE_EACH = {**NONE, **energy(1, 4, 32), **correlation(1, 8, 32), **flips(0.01, 0.04, 0.16)}
_AS_PRINTED = {**NONE, **energy(*ALPHAS), **correlation(*ALPHAS[2:]), **PLAIN, **flips(*FLIPS)}

MNIST = Study(
    "mnist-small",
    {**_AS_PRINTED, **energy(0.25, 4, 32, reduction="sum"), **noise(ratios=(5,))},
    [*CLUSTERING, *completions(1, 2, 4, 8, 16, 32)],
    seeds=3,
    first=("none", "pe-4", "dcor-8", "label_dp-0.04", "pe-32", "pe-0.25", "dcor-1", "dcor-32", "label_dp-0.16"),
    small=_FEW_ROWS,
)
WIDTH = Study(
    "mnist-small",
    {
        f"{name}-{width}": {**setting, "model": {"cut": width}}
        for name, setting in (("none", NONE["none"]), ("pe", energy(1)["pe-1"]))
        for width in WIDTHS
    },
    [*CLUSTERING, *completions(1, 2, 5, 10, 20, 40)],
    seeds=3,
    changes={"data": {"options": {"classes": ["0", "1"]}}},
    layers=("cut",),
    small=_FEW_ROWS,
)
CENSUS = Study(
    "census",
    {
        **NONE,
        **noise(ratios=(1, 5), strengths=(1, 4, 25)),
        **flips(0.01, 0.04, 0.16),
        **energy(4),
        **correlation(8),
    },
    ["spectral", "clustering", *completions(4, 32)[::2]],
    seeds=3,
    first=("none", "iso-5", "max_norm", "marvell-4", "label_dp-0.04"),
)
FASHION = Study(
    "fashion-small",
    _THREE_EACH,
    [*CLUSTERING, *completions(1, 4, 16, draws=3)],
    seeds=1,
    layers=("cut",),
    first=("none", "pe-4", "dcor-8", "label_dp-0.04"),
    small=_FEW_ROWS,
)
CIFAR = Study(
    "cifar10-small",
    _THREE_EACH,
    [*CLUSTERING, *completions(1, 4, draws=2)],
    seeds=1,
    changes={"data": {"name": "cifar10-jpeg"}},
    layers=("cut",),
    first=("none", "pe-4", "dcor-8", "label_dp-0.04"),
    small=_FEW_ROWS,
)

NIGHT = {"mnist": MNIST, "width": WIDTH, "census": CENSUS, "fashion": FASHION, "cifar": CIFAR}


def _in_full(study: Study, preset: str, **more: Any) -> Study:
    """Return a study at the paper's size: five seeds, and no run that stops early, as only its undefended ones do."""
    return replace(study, preset=preset, seeds=5, changes={**study.changes, "training": {"patience": 0}}, **more)


_ALL: Mapping[str, Any] = {"settings": _AS_PRINTED, "attacks": MNIST.attacks}
"""All strengths and all leaked labels of the paper."""

PAPER = {
    "mnist": _in_full(MNIST, "mnist"),
    "width": _in_full(WIDTH, "mnist"),
    "census": replace(CENSUS, seeds=5),
    "fashion": _in_full(FASHION, "fashion", **_ALL),
    "cifar": _in_full(CIFAR, "cifar10", **_ALL),
}

SIZES: dict[str, dict[str, Study]] = {"night": NIGHT, "paper": PAPER}
"""Studies by size: for two cores in a night, and of the paper's size, for a GPU."""
