"""A ledger refuses trainings that exceed its owner's limit, and files that somebody changed."""

import hashlib
import json
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from scipy.stats import norm

from flower_vfl.accounting import Gaussian, Laplace, RandomisedResponse, Release
from flower_vfl.accounting.ledger import Limit, PrivacyLedger, Training
from flower_vfl.errors import ArgumentError, DataError, OutputExistsError, PermissionDeniedError

NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)
LABELS = np.arange(40) % 2
KEPT = Release(RandomisedResponse(1.0), kept=True)
FRESH = Release(Laplace(4.0), draws=4)


def training(secret=1, release=KEPT, **changes):
    return replace(Training("digest of the rows", LABELS, secret, "", "local_head", release), **changes)


@pytest.fixture
def ledger(tmp_path):
    return PrivacyLedger.create(tmp_path / "ledger.json", Limit(2.5))


def spent(ledger, *trainings):
    """Charge trainings, and return the epsilon that is spent after them."""
    return [ledger.charge(one, NOW).spent for one in trainings][-1]


def test_trainings_with_new_secrets_add_up_until_the_limit_refuses_one_more(ledger):
    assert spent(ledger, training(1), training(2)) == 2.0
    words = r"epsilon of each label to 3, and the limit of .*ledger\.json is 2\.5: 2 trainings spent 2, 0\.5 is left"
    for refused in (ledger.check, lambda one: ledger.charge(one, NOW)):
        with pytest.raises(PermissionDeniedError, match=words):
            refused(training(3))
    assert len(ledger.read().entries) == 2
    assert spent(ledger, training(3, Release(RandomisedResponse(0.5), kept=True))) == 2.5


def test_a_limit_with_a_delta_takes_mechanisms_that_need_one(ledger):
    noisy = training(release=Release(Gaussian(8.0), draws=4))
    with pytest.raises(PermissionDeniedError, match=r"to inf, .* give the limit a delta above that of this training"):
        ledger.check(noisy)
    ledger.set_limit(Limit(2.5, 1e-6))
    epsilon = spent(ledger, noisy)  # that of one draw with sigma 4 [Balle and Wang, 2018]
    delta = norm.cdf(1 / 8 - 4 * epsilon) - np.exp(epsilon) * norm.cdf(-1 / 8 - 4 * epsilon)
    assert delta == pytest.approx(1e-6, rel=1e-6)


def test_the_same_draw_again_costs_nothing(ledger):
    assert spent(ledger, training(1), training(1, name="ab" * 16)) == 1.0
    assert len(ledger.read().entries) == 1


def test_a_resumed_training_costs_nothing_also_with_fresh_noise(ledger):
    named = training(release=FRESH, name="ab" * 16)
    assert spent(ledger, named, named) == 1.0


@pytest.mark.parametrize(
    "other",
    [
        {"release": FRESH},
        {"release": FRESH, "name": "cd" * 16},
        {"release": FRESH, "name": "ab" * 16, "defense": "another"},
        {"release": Release(Laplace(8.0), draws=4), "name": "ab" * 16},
        {"release": FRESH, "name": "ab" * 16, "rows": "of other people"},
        {"release": KEPT, "name": "ab" * 16},
    ],
    ids=str,
)
def test_a_secret_that_would_repeat_noise_in_another_training_is_refused(ledger, other):
    ledger.charge(training(release=FRESH, name="ab" * 16), NOW)
    with pytest.raises(PermissionDeniedError, match=r"reused noise can be subtracted\. Use a new secret"):
        ledger.charge(training(**other), NOW)


def test_other_people_count_as_if_they_were_the_same(ledger):
    assert spent(ledger, training(1), training(2, rows="of others", labels=LABELS[::-1])) == 2.0


def test_changed_labels_of_the_same_people_are_refused(ledger):
    ledger.charge(training(1), NOW)
    with pytest.raises(DataError, match="labels have changed since 2026-11-25T12:00:00"):
        ledger.charge(training(2, labels=np.where(np.arange(40) == 7, 0, LABELS)), NOW)


def test_it_names_labels_rows_and_secrets_by_digests_that_its_key_makes(ledger, tmp_path):
    ledger.charge(training(12345), NOW)
    text = ledger.path.read_text()
    labels = np.ascontiguousarray(LABELS, "<i8").tobytes()
    for plain in (hashlib.sha256(labels).hexdigest(), "digest of the rows", "12345"):
        assert plain[:16] not in text
    other = PrivacyLedger.create(tmp_path / "other.json", Limit(2.5))
    other.charge(training(12345), NOW)
    one, two = ledger.read().entries[0], other.read().entries[0]
    assert all(getattr(one, name) != getattr(two, name) for name in ("labels", "rows", "secret"))
    assert [stat.S_IMODE(path.stat().st_mode) for path in (ledger.path, ledger.key_path)] == [0o600, 0o600]


EDITS = {
    "another limit": lambda found: found["limit"].update(epsilon=9.0),
    "a smaller epsilon": lambda found: found["entries"][0]["release"].update(epsilon=0.1),
    "one training less": lambda found: found["entries"].pop(),
    "all trainings less": lambda found: found["entries"].clear(),
    "no code": lambda found: found.pop("code"),
    "a code of text": lambda found: found.update(code="é"),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_what_somebody_edited_is_refused(ledger, edit):
    assert spent(ledger, training(1), training(2)) == 2.0
    found = json.loads(ledger.path.read_text())
    edit(found)
    ledger.path.write_text(json.dumps(found))
    with pytest.raises(DataError, match="failed its integrity check: the file was modified or truncated"):
        ledger.charge(training(1), NOW)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", "{}", '{"code": 1}', "[" * 100_000], ids=lambda text: text[:12]
)
def test_what_is_no_ledger_is_refused(ledger, content):
    ledger.path.write_text(content)
    with pytest.raises(DataError, match="failed its integrity check"):
        ledger.read()


def test_a_ledger_that_was_cut_off_or_has_another_key_is_refused(ledger):
    ledger.charge(training(1), NOW)
    whole = ledger.path.read_bytes()
    ledger.path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="failed its integrity check"):
        ledger.read()
    ledger.path.write_bytes(whole)
    ledger.key_path.write_bytes(bytes(32))
    with pytest.raises(DataError, match="or the key is wrong"):
        ledger.read()


@pytest.mark.parametrize("gone", ["path", "key_path"])
def test_a_ledger_that_is_gone_is_not_begun_again_by_itself(ledger, gone):
    getattr(ledger, gone).unlink()
    with pytest.raises(DataError, match=r"no privacy ledger here: .* is missing"):
        ledger.charge(training(1), NOW)
    with pytest.raises(OutputExistsError, match="a ledger is never overwritten"):
        PrivacyLedger.create(ledger.path, Limit(9.0))


def test_a_ledger_that_cannot_be_written_refuses_a_training_before_it_begins(ledger, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: path != ledger.path.parent)
    with pytest.raises(DataError, match=r"ledger\.json cannot be written"):
        ledger.check(training(1))


def test_of_trainings_that_begin_at_once_only_as_many_as_fit_are_charged(ledger):
    barrier, refused = threading.Barrier(8), []

    def charge(secret):
        barrier.wait()
        try:
            PrivacyLedger(ledger.path).charge(training(secret), NOW)
        except PermissionDeniedError as error:
            refused.append(error)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(charge, range(8)))
    assert len(refused) == 6
    assert ledger.read().spent == 2.0


def test_a_limit_below_what_is_spent_allows_nothing_more(ledger):
    ledger.charge(training(1), NOW)
    account = ledger.set_limit(Limit(0.5))
    assert (account.spent, account.limit.epsilon) == (1.0, 0.5)
    with pytest.raises(PermissionDeniedError, match="0 is left"):
        ledger.check(training(2))
    ledger.check(training(1))  # costs nothing more


@pytest.mark.parametrize("values", [(-1.0,), (float("inf"),), (1.0, 1.0), (1.0, 1e-12), (True,)], ids=str)
def test_what_is_no_limit_is_refused(values):
    with pytest.raises(ArgumentError, match="must be"):
        Limit(*values)
