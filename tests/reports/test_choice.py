"""The recommendation of a comparison says no more than the pages of its runs."""

import pytest

from flower_vfl.auditing.verdict import LEAKS, NO_LEAK, PROVEN
from flower_vfl.reports.choice import Candidate, choice_of
from flower_vfl.reports.headline import TONES


def candidate(name, status, validation=0.9, **facts):
    return Candidate({"name": name}, name, status, True, None, validation, 0.9, -0.01, **facts)


def test_a_run_that_is_amber_by_itself_is_not_recommended():
    amber = candidate("iso", NO_LEAK, 0.95, open=True)
    found = choice_of([amber, candidate("none", LEAKS)], "test_auc")
    assert (found.tone, found.row) == ("warn", None)
    assert "whether iso leaks is not clear" in found.headline
    clear = choice_of([amber, candidate("marvell_full", NO_LEAK, 0.9)], "test_auc")
    assert (clear.tone, clear.row) == (TONES[NO_LEAK], {"name": "marvell_full"})


@pytest.mark.parametrize("tone", ["warn", TONES[PROVEN]])
def test_a_proof_has_the_colour_that_its_own_page_has(tone):
    found = choice_of([candidate("label_dp", PROVEN, epsilon=9.0, tone=tone)], "test_auc")
    assert found.tone == tone
