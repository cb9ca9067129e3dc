"""The p-values of attacks on gradients, from their entries in a result."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flower_vfl.auditing.entries import Entry, is_remembered, null_of, reached, scored_steps, turned

_Z95 = 1.6448536269514722  # the normal distribution's 95 % quantile
_Z975 = 1.959963984540054


def practical_p_value(entry: Entry) -> float | None:
    r"""Return the probability that a random score reaches as much as a practical entry; None where it is unknown.

    Of single steps it is the entry's ``q95_p_value``, which follows from the class counts of each batch, and of the
    whole table, whose rows may keep their scores in all epochs. Without one
    the T scored steps count as equal: the q95 is the k-th smallest leak AUC, :math:`k = \lceil 0.95\,T \rceil`, and
    under chance one step is about :math:`N(1/2, \sigma^2)` with the :math:`\sigma` that the chance level gives,
    :math:`q95_{null} = 1/2 + 1.645\,\sigma`, so

    .. math:: P = P\big(\mathrm{Bin}(T, 1 - \Phi((x - 1/2) / \sigma)) \ge T - k + 1\big),

    doubled, as scores may be turned around. A longitudinal attack has one AUC over all rows after each of E epochs:
    its ``p_value`` is the least probability of one of them, by the rows of that epoch, times 2 E and the number of
    classes that were compared. Without one all epochs count as equal. Where C classes take turns in single steps, each
    has a test of its own, too. So are single steps, where their ``max_p_value`` is known: a leak in fewer than one of
    twenty hardly moves the q95. The smallest of all these p-values is multiplied by their number.

    Examples
    --------
    >>> step = {"q95": 0.55, "q95_null": 0.55, "q95_turned": 0.55, "mean": 0.5, "steps": 200}
    >>> practical_p_value(step), practical_p_value({**step, "q95": 0.6}) < 1e-9
    (1.0, True)
    """
    if is_remembered(entry):
        return _remembered_p_value(entry)
    of_q95, of_steps = corrected(entry)
    return min((p for p in (of_q95, of_steps) if p is not None), default=None)


def corrected(entry: Entry) -> tuple[float | None, float | None]:
    """Return the p-values of the q95 and of single steps, each times the number of tests of the entry."""
    classes = [one for one in entry.get("by_class") or () if one.get("q95") is not None]
    values = [p for one in (entry, *classes) if (p := _step_p_value(one)) is not None]
    single = entry.get("max_p_value")
    tests = len(values) + (single is not None)
    of_q95 = min(1.0, min(values) * tests) if values else None
    return of_q95, None if single is None else min(1.0, float(single) * tests)


def _step_p_value(entry: Entry) -> float | None:
    if entry.get("q95_p_value") is not None:
        return float(entry["q95_p_value"])
    sigma, steps = (null_of(entry) - 0.5) / _Z95, max(1, scored_steps(entry))
    if not sigma > 0:
        return None
    return min(1.0, 2.0 * min(_order_p_value(side, null_of(entry), sigma, steps) for side in sides(entry)))


def sides(entry: Entry) -> list[float]:
    """Return the q95 of scores as they are and, where known, that of scores turned around."""
    known = entry.get("q95_turned") is not None or entry.get("mean") is not None
    return [float(entry["q95"]), *([turned(entry)] if known else [])]


def _order_p_value(value: float, null: float, sigma: float, steps: int) -> float:
    """Return the probability that the nearest-rank q95 of random scores in these steps is at least a value."""
    from scipy.special import bdtrc, ndtr

    if value <= null:
        return 1.0  # chance level; AUCs of few rows are discrete, and the normal tail does not hold there
    rank = math.ceil(0.95 * steps - 1e-9)
    return float(bdtrc(steps - rank, steps, float(ndtr((0.5 - value) / sigma))))


def _remembered_p_value(entry: Entry) -> float | None:
    from scipy.special import ndtr

    if entry.get("p_value") is not None:
        return float(entry["p_value"])
    sigma = (null_of(entry) - 0.5) / _Z95
    ends = entry.get("interval95")
    if not sigma > 0 and isinstance(ends, Sequence) and len(ends) == 2:
        sigma = (float(ends[1]) - float(ends[0])) / (2 * _Z975)
    if not sigma > 0:
        return None
    epochs = max(1, len(entry.get("values") or ()))
    return min(1.0, 2.0 * epochs * float(ndtr((0.5 - reached(entry)) / sigma)))
