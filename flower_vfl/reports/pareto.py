"""Pareto front: the settings that no other one beats in utility and leak."""

from __future__ import annotations

from collections.abc import Sequence


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the positions of the points that no other point beats, from the least leak to the most.

    A point beats another where it is at least as good in both and better in one; equal points all stay.

    Parameters
    ----------
    points
        (utility, leak) of each setting; less leak is better.

    Examples
    --------
    >>> front([(0.9, 1.0), (0.8, 0.6), (0.7, 0.7)])
    [1, 0]
    """
    order = sorted(range(len(points)), key=lambda index: (points[index][1], -points[index][0]))
    chosen: list[int] = []
    for index in order:
        utility, leak = points[index]
        if chosen:
            last = points[chosen[-1]]
            if utility < last[0] or (utility == last[0] and leak > last[1]):
                continue
        chosen.append(index)
    return chosen
