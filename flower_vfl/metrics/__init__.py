"""Pure functions that measure: leak AUC and what chance reaches, detection error, certificate, calibration."""

from flower_vfl.metrics.arrays import ArgumentError
from flower_vfl.metrics.calibration import adaptive_calibration_error
from flower_vfl.metrics.certificate import Exceedances, auc_bound, detection_error_bound, exceedances
from flower_vfl.metrics.leakage import detection_error, leak_auc, separation
from flower_vfl.metrics.null import null_quantile
from flower_vfl.metrics.snapshot import Observations, Values, observations, snapshot
from flower_vfl.metrics.summary import LeakSummary, nearest_rank

__all__ = [
    "ArgumentError",
    "Exceedances",
    "LeakSummary",
    "Observations",
    "Values",
    "adaptive_calibration_error",
    "auc_bound",
    "detection_error",
    "detection_error_bound",
    "exceedances",
    "leak_auc",
    "nearest_rank",
    "null_quantile",
    "observations",
    "separation",
    "snapshot",
]
