"""The sections of a run configuration: every key with its type, its bounds and its default."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from flower_vfl.config.parsing import feature_party_name, parse_calls
from flower_vfl.config.section import AUTO, Section, automatic, require_plain

ALL = "all"
_EVERY_ADDRESS = ("0.0.0.0", "::", "[::]")
_LONGEST = 1e9
"""Largest time limit in seconds: a wait for a lock accepts no more than some 300 years."""


DEFAULT_ATTACKS = ("norm", "residual", "direction", "shell")
"""Attacks that need nothing but the gradients that a party receives; the default of `attack.names`."""

SCORED, MOST_APART = 64, 16
"""Number of steps of a run that are scored by default, enough for a 95 % quantile, and largest distance between two of
them; each scored step costs time."""


AUTO_STEPS, AUTO_BATCHES, AUTO_BATCH_SIZES, AUTO_EPOCHS = 4000, 50, (16, 1024), (10, 200)
"""Numbers for the settings "auto": steps of a run, batches an epoch, and the bounds of batch size and epochs."""

STEPS_ON_NOISE = 250
"""Number of steps of a run for "auto" where labels are randomised: in more, models learn which labels were changed."""

PATIENT_STEPS, LEAST_PATIENCE, LEARNING_RATE = 600, 8, 1e-3
"""Numbers for the settings "auto": patience in steps, the least patience in epochs, and the learning rate."""


MANY_ROWS = 3_000
"""Number of training rows below which embeddings of numbers cost accuracy more often than they add some."""


class DataConfig(Section):
    """The data of a run, and its place."""

    name: str = Field(default="census-income", min_length=1, description="data set; `flower-vfl data list` shows them")
    path: str = Field(
        default="",
        description="folder or file of the raw or prepared data; empty: where the data set's package puts it",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="options of the data set's loader")

    @field_validator("options")
    @classmethod
    def _plain_options(cls, options: dict[str, Any]) -> dict[str, Any]:
        require_plain(options)
        return options


class PartiesConfig(Section):
    """The parties of a run."""

    features: list[str] = Field(
        default_factory=list, description="feature parties, 1 to 32; empty: all but the label party"
    )
    label_features: bool = Field(default=True, description="the label party's own columns are used, if it has any")
    attackers: list[str] = Field(default_factory=list, description="feature parties that run attacks; empty: all")
    colluding: list[str] = Field(
        default_factory=lambda: [ALL],
        description='groups of colluding parties, e.g. "a+b", attacked by the monitor; "all": all attackers',
    )

    @field_validator("features", "attackers")
    @classmethod
    def _names(cls, names: list[str]) -> list[str]:
        for name in names:
            feature_party_name(name)
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
        """The feature parties that `attackers` and `colluding` name, by configuration key."""
        groups = [group for group in self.colluding if group != ALL]
        return {
            "parties.attackers": self.attackers,
            "parties.colluding": [name for group in groups for name in group.split("+")],
        }

    def coalitions(self, features: Sequence[str]) -> dict[str, list[str]]:
        """Return the colluding groups of two and more parties, by name, in a run with these feature parties.

        Examples
        --------
        >>> PartiesConfig().coalitions(["a", "b", "c"])
        {'a+b+c': ['a', 'b', 'c']}
        """
        everybody = self.attackers or list(features)
        found = ["+".join(everybody) if group == ALL else group for group in self.colluding]
        return {group: group.split("+") for group in found if "+" in group}


class ModelConfig(Section):
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
        default=8, ge=1, le=4096, description="width of the embedding of one category, one number, or one word"
    )
    numeric_embedding: Literal["auto", "bins", "none"] = Field(
        default="auto",
        description='for tables: "bins": numbers have embeddings too, linear within bins of the training rows; "auto": '
        "from 3,000 training rows on",
    )
    embedding_device: Literal["same", "cpu"] = Field(
        default="same",
        description="where embedding tables are: with the rest, or in main memory, for those too large for a GPU",
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
    ensemble: int = Field(
        default=1,
        ge=1,
        le=256,
        description="for tables: networks that share most weights and whose predictions are averaged; each has its "
        "part of the cut, and a step takes longer",
    )
    fusion: Literal["concat", "sum", "mean"] = Field(
        default="concat", description="how the parties' embeddings are joined"
    )

    @field_validator("bottom", "channels", "top_channels", "top")
    @classmethod
    def _widths(cls, widths: list[int]) -> list[int]:
        if any(width < 1 for width in widths):
            raise ValueError("layer widths must be at least 1")
        return widths

    def fitted(self, rows: int) -> Self:
        """Return the section with "auto" replaced by a choice for `rows` training rows, where the network has it."""
        if self.network != "auto" or self.numeric_embedding != AUTO:
            return self
        return self.model_copy(update={"numeric_embedding": "bins" if rows >= MANY_ROWS else "none"})


class TrainingConfig(Section):
    """Settings of the training loop."""

    epochs: Annotated[int, *automatic(0)] = Field(
        default=AUTO,
        ge=0,
        description='largest number of passes over the training rows; "auto": as many as the rows need',
    )
    order: Literal["random", "time"] = Field(
        default="random",
        description='order of the rows; "time": day after day, each scored before it is trained on, one pass',
    )
    batch_size: Annotated[int, *automatic(0)] = Field(
        default=AUTO, ge=0, description='rows of one step; "auto": about 50 steps an epoch, 16 to 1024 rows'
    )
    eval_batch_size: int = Field(default=8192, ge=1, description="rows of one evaluation message")
    optimizer: Literal["adam", "adamw", "sgd"] = Field(default="adam", description="optimizer of every party")
    fused: bool = Field(
        default=False, description="PyTorch's fused optimizers: faster for small models, weights not bit-equal"
    )
    learning_rate: Annotated[float, *automatic(0)] = Field(
        default=AUTO, ge=0.0, description='learning rate; "auto": 0.001'
    )
    schedule: Literal["constant", "cosine", "step", "linear"] = Field(
        default="constant", description="learning-rate schedule"
    )
    weight_decay: float = Field(default=0.0, ge=0.0, le=1e6, description="weight decay of dense weights")
    embedding_decay: float = Field(
        default=0.0,
        ge=0.0,
        description="weight decay of embeddings: of the rows that a batch touches, as a part of their gradients",
    )
    class_weights: Literal["none", "balanced"] = Field(
        default="none",
        description="weights of the classes in the loss; balanced: a rare class counts as much as any other, and of "
        "more than two classes the AUC's mean over them chooses the epoch, not the accuracy",
    )
    clip_norm: float = Field(
        default=0.0, ge=0.0, description="largest norm of the batch's cut gradient and of the top's; 0: off"
    )
    pretrain: int = Field(
        default=0,
        ge=0,
        description="passes in which each feature party trains its bottom model on its own columns, without labels, "
        "before the first step, also on rows whose people others lack; nothing is sent; 0: off",
    )
    gradients: bool = Field(
        default=True,
        description="gradients go to feature parties; false: their embeddings cross once, and nothing that depends on "
        "labels leaves the label party",
    )
    refit: int = Field(
        default=0,
        ge=0,
        description="passes in which the label party's own network is trained on after the last step, on embeddings of "
        "the finished bottom models, which cross once more; the pass with the best validation is kept; nothing is "
        "sent; 0: off",
    )
    validation: float = Field(default=0.1, ge=0.0, lt=1.0, description="part of the training rows kept for validation")
    patience: Annotated[int, *automatic(-1)] = Field(
        default=AUTO,
        ge=-1,
        description="stop after so many epochs without a better validation, keep the best model; 0: off; "
        '"auto": off where epochs is a number',
    )

    @property
    def ends_early(self) -> bool:
        """True if training may end before its last epoch."""
        automatic = not self.epochs and self.order == "random" and self.validation > 0.0
        return automatic if self.patience < 0 else self.patience > 0

    def fitted(self, rows: int, steps: int = AUTO_STEPS) -> Self:
        """Return the section with each "auto" replaced by a number for `rows` training rows, validation included.

        A run has about `steps` steps, within the bounds of `AUTO_EPOCHS`.

        Examples
        --------
        >>> fitted = TrainingConfig().fitted(30_000)
        >>> fitted.batch_size, fitted.epochs, fitted.patience
        (512, 76, 12)
        >>> TrainingConfig(epochs=3).fitted(1_000).patience
        0
        """
        trained = max(1, rows - int(rows * self.validation))
        low, high = AUTO_BATCH_SIZES
        batch_size = self.batch_size or min(high, max(low, 2 ** round(math.log2(max(1, trained / AUTO_BATCHES)))))
        in_epoch = math.ceil(trained / batch_size)
        fitting = min(AUTO_EPOCHS[1], max(AUTO_EPOCHS[0], math.ceil(steps / in_epoch)))
        epochs = self.epochs or (1 if self.order == "time" else fitting)
        patience = self.patience
        if patience < 0:
            patience = max(LEAST_PATIENCE, math.ceil(PATIENT_STEPS / in_epoch)) if self.ends_early else 0
        numbers = {"batch_size": batch_size, "epochs": epochs, "patience": patience}
        return self.model_copy(update={**numbers, "learning_rate": self.learning_rate or LEARNING_RATE})


class AttackConfig(Section):
    """Attacks during training, and their logs."""

    names: list[str] = Field(
        default_factory=lambda: list(DEFAULT_ATTACKS),
        description='attacks that attackers and the monitor run, e.g. "norm" or "hint(k=5,measure=inner)"',
    )
    layers: list[str] = Field(
        default_factory=list,
        description="layers of their own models that attackers read; empty: the cut and those that the model watches",
    )
    every: int = Field(
        default=0,
        ge=0,
        description="of so many steps in a row one is scored; 0: 16, or fewer so that the shortest run that patience "
        "allows has 64 scored steps",
    )
    informed: int = Field(
        default=65536,
        ge=0,
        le=2**24,
        description="rows of each party that the monitor keeps for readers fitted to labels, in bounded memory; 0: off",
    )
    canaries: int = Field(
        default=0,
        ge=0,
        le=65536,
        description="rows whose labels are replaced by coin flips, to measure epsilon; costs utility; 0: none",
    )
    positives: list[Annotated[int, Field(ge=0)]] = Field(
        default_factory=list,
        description="classes that gradient attacks detect, in turn; empty: class 1 of two classes, each of more",
    )
    monitor: bool = Field(default=True, description="the label party attacks its own outgoing messages")
    audit: bool = Field(default=True, description="in a simulation, true labels go to the attackers' evaluators")
    max_leak: float = Field(
        default=1.0,
        gt=0.5,
        le=1.0,
        description="limit of the monitor's leak AUC in an epoch: q95 over steps, longitudinal attacks and oracles "
        "too; 1: off",
    )
    max_bound: float = Field(
        default=1.0,
        gt=0.5,
        le=1.0,
        description="limit of the defense's bound on the leak AUC, of a step and of all epochs; 1: off",
    )
    on_leak: Literal["stop", "warn"] = Field(
        default="stop",
        description="when a limit is passed: training stops and the model from before stays, or it goes on",
    )
    snapshots: list[int] = Field(
        default_factory=lambda: [100, 200, 300, 400, 500],
        description="steps whose gradient components the label party stores for its report",
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
            raise ValueError("steps are at least 0, and [] keeps no snapshot")
        return steps

    @model_validator(mode="after")
    def _read_canaries(self) -> Self:
        if self.canaries and not (self.monitor and self.informed):
            raise ValueError(
                f"attack.canaries is {self.canaries}, and nobody would read them: set attack.monitor = true and "
                "attack.informed above 0, or attack.canaries = 0"
            )
        return self

    def without_attacks(self) -> Self:
        """Return the section without attacks, readers, canaries and limits."""
        return self.model_copy(update={"names": [], "informed": 0, "canaries": 0, "max_leak": 1.0, "max_bound": 1.0})

    def cadence(self, steps: int) -> int:
        """Return the distance between two scored steps, in a run of `steps` steps.

        Examples
        --------
        >>> AttackConfig().cadence(792), AttackConfig().cadence(100_000), AttackConfig(every=2).cadence(792)
        (12, 16, 2)
        """
        return self.every or min(MOST_APART, max(1, steps // SCORED))

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The attacks, each as its name and its parameters.

        Raises
        ------
        ConfigError
            When a name is not understood.
        """
        return [call for name in self.names for call in parse_calls(name, "attack.names", 'e.g. "hint(k=5)"')]


class TransportConfig(Section):
    """Transport of messages across the cut."""

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
        default=60.0,
        gt=0.0,
        le=_LONGEST,
        description="seconds for parties to arrive, from when the last node connected",
    )
    max_frame_mib: int = Field(
        default=64, ge=1, le=1024, description="largest message that the session endpoint takes, MiB"
    )
    step_timeout: float = Field(default=600.0, gt=0.0, le=_LONGEST, description="seconds to wait for one answer")
    reconnect_timeout: float = Field(
        default=30.0, ge=0.0, le=_LONGEST, description="seconds for a broken stream to come back and go on where it was"
    )
    rejoin_timeout: float = Field(
        default=300.0,
        ge=0.0,
        le=_LONGEST,
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


class AlignConfig(Section):
    """Alignment of IDs before training: `flower-vfl align`."""

    method: Literal["psi", "hash"] = Field(
        default="psi", description='"psi": private; "hash": salted hashes, which the label party can try IDs against'
    )
    max_ids: int = Field(default=10_000_000, ge=1, description="most IDs that a feature party may have")
    message_mib: int = Field(default=32, ge=1, le=512, description="largest Flower message of an alignment, MiB")
    processes: int = Field(
        default=0, ge=0, description="processes of a party for curve arithmetic, at most one a core; 0: one a core"
    )
    timeout: float = Field(default=3600.0, gt=0.0, description="seconds to wait for one answer of a party")


class PrivacyConfig(Section):
    """Privacy accounting of proven defenses over several trainings."""

    ledger: str = Field(
        default="",
        description="in a simulation, the label party's ledger, which `flower-vfl budget` begins; a deployed label "
        "party names its own in FLOWER_VFL_LEDGER",
    )


class CheckpointConfig(Section):
    """States that every party keeps on its own disk, so that a run can go on after an interruption."""

    every: int = Field(default=0, ge=-1, description="steps between two checkpoints; 0: each epoch; -1: off")
    keep: int = Field(default=2, ge=2, description="how many checkpoints each party keeps")
