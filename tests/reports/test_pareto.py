"""The front of the settings that no other setting beats."""

from hypothesis import given
from hypothesis import strategies as st

from flower_vfl.reports.pareto import front

POINTS = st.lists(st.tuples(st.integers(0, 6).map(float), st.integers(0, 6).map(float)), max_size=12)


def beaten(points, index, sign):
    u, leak = points[index]
    return any(sign * v >= sign * u and other <= leak and (v, other) != (u, leak) for v, other in points)


@given(points=POINTS, less=st.booleans())
def test_the_front_is_exactly_the_points_that_no_other_beats_from_the_least_leak(points, less):
    sign = -1 if less else 1
    chosen = front(points, less=less)
    assert sorted(chosen) == [i for i in range(len(points)) if not beaten(points, i, sign)]
    leaks = [points[i][1] for i in chosen]
    assert leaks == sorted(leaks)
