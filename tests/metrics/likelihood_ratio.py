"""AUC of the likelihood ratio of two classes of releases, which is the best rule, by sampling."""

import numpy as np

from flower_vfl.metrics import leak_auc


def best_auc(model, samples):
    """Return the AUC of the likelihood ratio for a `Together`, from `samples` examples of each class.

    Its standard error is at most ``sqrt(1 / (6 * samples))``.
    """
    rng, scores = np.random.default_rng(0), np.zeros((2, samples))
    parts = [(model.difference, model.inside, 1)]
    if model.others:
        parts.append((np.zeros(len(model.outside[0])), model.outside, model.others))
    for difference, covariances, copies in parts:
        factors = [np.linalg.cholesky(covariance) for covariance in covariances]
        inverses = [np.linalg.inv(factor) for factor in factors]
        for _ in range(copies):
            for label in (0, 1):
                drawn = rng.standard_normal((samples, len(difference))) @ factors[label].T + label * difference
                near, far = ((drawn - c * difference) @ inverses[c].T for c in (0, 1))
                scores[label] += 0.5 * ((near**2).sum(axis=1) - (far**2).sum(axis=1))
    return leak_auc(scores.ravel(), np.repeat([False, True], samples))
