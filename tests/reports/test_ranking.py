"""The settings that no other setting beats."""

from hypothesis import given
from hypothesis import strategies as st

from flower_vfl.reports.ranking import not_beaten

POINTS = st.lists(st.tuples(st.integers(0, 6).map(float), st.integers(0, 6).map(float)), max_size=12)


def beaten(points, index):
    u, leak = points[index]
    return any(v >= u and other <= leak and (v, other) != (u, leak) for v, other in points)


@given(points=POINTS)
def test_the_front_is_exactly_the_points_that_no_other_beats_from_the_least_leak(points):
    chosen = not_beaten(points)
    assert sorted(chosen) == [i for i in range(len(points)) if not beaten(points, i)]
    leaks = [points[i][1] for i in chosen]
    assert leaks == sorted(leaks)
