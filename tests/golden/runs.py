"""The runs: their configurations and commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["run", "resumed", "sweep", "align"]

SMALL = {
    "training.epochs": 2,
    "training.batch_size": 100,
    "model.bottom": [16],
    "model.top": [8],
    "model.cut": 6,
    "attack.every": 3,
    "attack.informed": 0,
    "attack.snapshots": [5],
    "attack.embeddings": 100,
}
"""A network and a cadence of attacks that take a second; a run's own settings override them."""

LONGITUDINAL = [
    "norm",
    "remembered_norm",
    "remembered_direction",
    "remembered_difference",
    "remembered_hint(k=4)",
    "remembered_fit(k=8)",
    "remembered_quadratic(k=8)",
    "remembered_network(k=8,steps=30)",
]
ONE_BATCH = [
    *("norm", "cosine", "inner_product", "direction_count", "hint(k=4)", "hint(k=4,measure=distance)"),
    *("residual", "direction", "shell", "gradient_clustering"),
]
OF_EMBEDDINGS = ["clustering", "model_completion(k=4,draws=2)", "embedding_reader(k=8,draws=2)"]


def synthetic(parties: int, rows: int = 1000) -> dict[str, Any]:
    """Return the settings of generated tables with numeric and categorical columns."""
    options = {"rows": rows, "test_rows": 300, "parties": parties, "numeric": 3, "categorical": 4, "vocabulary": 60}
    return {
        "data.name": "synthetic",
        **{f"data.options.{name}": value for name, value in options.items()},
        "data.options.positives": 0.3,
        "model.embedding_width": 3,
    }


GAP = {"data.name": "toy-gap"}
DIGITS = {"data.name": "digits", "model.channels": [4], "attack.names": OF_EMBEDDINGS}
TUMOURS = {"data.name": "breast-cancer", "training.batch_size": 48, "training.epochs": 3}
TABLES = {
    "data.name": "files",
    "data.path": "{inputs}/tables",
    "data.options.files": {"a": "a.csv", "b": "b.csv"},
    "data.options.labels_file": "labels.csv",
    "data.options.label": "y",
    "training.batch_size": 50,
}


@dataclass(frozen=True)
class Run:
    """One run, or one sweep.

    Attributes
    ----------
    settings
        Dotted configuration keys with values; "{inputs}" in a text is the folder of the inputs, None leaves a key out.
    kind
        "run"; "resumed" is killed after its first epoch and resumed; "sweep" has `cases`; "align".
    predict
        True if the finished run also scores the test rows.
    cases
        Settings of the trials of a sweep; those that can be trained together are.
    """

    settings: Mapping[str, Any]
    kind: Kind = "run"
    predict: bool = False
    cases: tuple[Mapping[str, Any], ...] = ()


RUNS: dict[str, Run] = {
    # The longest first: begun last, it would keep the other cores waiting.
    "sweep": Run(
        {**GAP, "attack.names": ["norm", "residual", "direction", "shell", "remembered_norm"]},
        kind="sweep",
        cases=(
            {"seed": 0, "defenses": "none"},
            {"seed": 1, "defenses": "max_norm(rho=0.2)"},
            {"seed": 2, "defenses": "iso(t=2.0,rho=0.3)"},
            {"seed": 3, "defenses": "marvell(s=2.0,rho=0.5)"},
            {"seed": 4, "defenses": "marvell_full(s=2.0)"},
            {"seed": 5, "defenses": "marvell_full(s=2.0)"},
            {"seed": 6, "defenses": "label_dp(flip=0.1)"},  # cannot be stacked
        ),
    ),
    "one-batch-attacks": Run({**GAP, "attack.names": ONE_BATCH, "attack.layers": ["first", "cut"]}, predict=True),
    "longitudinal-attacks": Run({**synthetic(2), "training.epochs": 3, "attack.names": LONGITUDINAL}),
    "joint-attacks": Run({**synthetic(2), "attack.names": ["norm", "joint_regression", "joint_reader(k=16)"]}),
    "embedding-attacks": Run({**TUMOURS, "attack.names": ["spectral", *OF_EMBEDDINGS]}),
    "informed-readers": Run({**synthetic(3), "attack.informed": 4096, "training.epochs": 3}),
    "colluding": Run(
        {
            **synthetic(4),
            "parties.attackers": ["a", "b"],
            "parties.colluding": ["a+b", "b+c"],
            "model.fusion": "mean",
            "attack.names": ["norm", "cosine", "remembered_norm"],
            "defenses": "iso(t=1.0,scope=per-party)",
        }
    ),
    "stream": Run({**synthetic(3), "transport.kind": "stream", "attack.informed": 4096}, predict=True),
    "stream-in-flight": Run(
        {
            **synthetic(3),
            "transport.kind": "stream",
            "transport.in_flight": 4,
            "transport.wire_dtype": "float16",
            "defenses": "max_norm",
        }
    ),
    "messages": Run({**synthetic(3), "transport.kind": "messages"}),
    "messages-in-flight": Run(
        {
            **synthetic(2),
            "transport.kind": "messages",
            "transport.in_flight": 3,
            "transport.wire_dtype": "bfloat16",
            "model.dropout": 0.2,
        }
    ),
    "iso": Run({**TUMOURS, "defenses": "iso(t=2.0,rho=0.5)"}),
    "max-norm": Run({**GAP, "defenses": "max_norm(rho=0.4)", "training.schedule": "cosine"}),
    "marvell": Run(
        {**GAP, "defenses": "marvell(sum_kl=0.5,rho=0.2)", "attack.names": [*ONE_BATCH, *LONGITUDINAL[1:4]]}
    ),
    "marvell-many-classes": Run({**DIGITS, "defenses": "marvell(s=2.0)", "attack.names": ["norm", "residual"]}),
    "marvell-full": Run({**GAP, "defenses": "marvell_full(s=2.0,rho=0.3)", "attack.max_bound": 0.999}),
    "marvell-full-imitate": Run({**GAP, "defenses": "marvell_full(detection_error=0.3,imitate=true), label_dp"}),
    "label-dp": Run({**TUMOURS, "defenses": "label_dp(epsilon=3.0)"}),
    "local-head": Run(
        {
            **synthetic(2, rows=2000),
            "defenses": "local_head(epsilon=2.0)",
            "training.pretrain": 2,
            "training.refit": 2,
            "attack.canaries": 100,
            "attack.informed": 2048,
        },
        predict=True,
    ),
    "no-gradients": Run({**synthetic(2), "training.gradients": False, "training.pretrain": 2, "model.ensemble": 2}),
    "potential-energy": Run({**DIGITS, "defenses": "potential_energy(alpha=2.0)"}),
    "distance-correlation": Run({**TUMOURS, "defenses": "distance_correlation(alpha=0.5,form=log), iso(t=0.5)"}),
    "resumed": Run(
        {
            **synthetic(2),
            "training.epochs": 6,
            "checkpoint.every": 4,
            "defenses": "marvell(s=2.0,rho=0.3)",
            "attack.names": [*LONGITUDINAL[:6], "direction"],
            "attack.informed": 2048,
        },
        kind="resumed",
    ),
    "resumed-stream": Run(
        {**synthetic(3), "training.epochs": 6, "transport.kind": "stream", "defenses": "iso"}, kind="resumed"
    ),
    "leak-limit": Run({**GAP, "training.epochs": 4, "attack.max_leak": 0.6}),
    "early-stopping": Run(
        {**TUMOURS, "training.epochs": 12, "training.patience": 2, "training.learning_rate": 0.1, "seed": 3}
    ),
    "tables": Run(
        {
            **TABLES,
            "training.optimizer": "sgd",
            "training.learning_rate": 0.05,
            "training.class_weights": "balanced",
            "training.clip_norm": 0.5,
            "training.weight_decay": 0.01,
        },
        predict=True,
    ),
    "aligned": Run(TABLES, kind="align"),
    "texts": Run(
        {
            "data.name": "dbpedia",
            "data.path": "{inputs}/texts",
            "data.options.length": 16,
            "data.options.vectors": "{inputs}/vectors.txt",
            "model.network": "textcnn",
            "model.bottom": None,
            "model.top": None,
            "training.batch_size": 20,
            "attack.names": ["norm", "clustering"],
        }
    ),
    "images": Run(
        {
            **DIGITS,
            "attack.names": ["norm"],
            "model.channels": [4, 4],
            "model.pools": 1,
            "model.top_channels": [4],
            "model.fusion": "sum",
            "defenses": "distance_correlation(form=squared,normalise=true)",
        }
    ),
    "clicks-in-time-order": Run(
        {
            "data.name": "avazu",
            "data.path": "{inputs}/clicks/train.csv",
            "data.options.test_days": 1,
            "data.options.label_columns": ["C1", "banner_pos"],
            "model.network": "wide-deep",
            "model.embedding_width": 3,
            "training.order": "time",
            "training.epochs": 1,
            "training.validation": 0.0,
            "training.embedding_decay": 0.02,
            "attack.names": ["norm", "residual"],
        }
    ),
}
