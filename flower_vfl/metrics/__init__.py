"""Metrics as pure functions: leak AUC and its null distribution, detection error, certificate, calibration."""

from flower_vfl.errors import ArgumentError
from flower_vfl.metrics.calibration import adaptive_calibration_error
from flower_vfl.metrics.certificate import (
    Exceedances,
    accuracy_bound,
    auc_bound,
    detection_error_bound,
    exceedances,
    one_against_rest_bound,
)
from flower_vfl.metrics.embeddings import Embeddings, compact, pair_angles, sample_rows
from flower_vfl.metrics.epsilon import (
    audit_power,
    coin_bound,
    coin_p_value,
    guesses_needed,
    odds_bound,
    odds_p_value,
    poisson_binomial_tail,
)
from flower_vfl.metrics.interval import auc_interval, mean_interval, mean_share_interval, share_interval
from flower_vfl.metrics.leakage import detection_error, leak_auc, separation
from flower_vfl.metrics.multiclass import balanced_accuracy, macro_auc, recalls
from flower_vfl.metrics.null import null_quantile, quantile_p_value, step_p_values
from flower_vfl.metrics.paired import AucDifference, auc_difference, auc_p_value
from flower_vfl.metrics.releases import EpochRelease, ShapedRelease, Together, together, together_shaped
from flower_vfl.metrics.snapshot import Observations, Values, observations, snapshot
from flower_vfl.metrics.summary import LeakSummary, nearest_rank

__all__ = [
    "ArgumentError",
    "AucDifference",
    "Embeddings",
    "EpochRelease",
    "Exceedances",
    "LeakSummary",
    "Observations",
    "ShapedRelease",
    "Together",
    "Values",
    "accuracy_bound",
    "adaptive_calibration_error",
    "auc_bound",
    "auc_difference",
    "auc_interval",
    "auc_p_value",
    "audit_power",
    "balanced_accuracy",
    "coin_bound",
    "coin_p_value",
    "compact",
    "detection_error",
    "detection_error_bound",
    "exceedances",
    "guesses_needed",
    "leak_auc",
    "macro_auc",
    "mean_interval",
    "mean_share_interval",
    "nearest_rank",
    "null_quantile",
    "observations",
    "odds_bound",
    "odds_p_value",
    "one_against_rest_bound",
    "pair_angles",
    "poisson_binomial_tail",
    "quantile_p_value",
    "recalls",
    "sample_rows",
    "separation",
    "share_interval",
    "snapshot",
    "step_p_values",
    "together",
    "together_shaped",
]
