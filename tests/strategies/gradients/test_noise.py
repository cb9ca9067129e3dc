"""Persistent noise: a share of a row's noise is the same whenever the row recurs."""

import json
import math
import struct
from dataclasses import replace
from typing import ClassVar
from unicodedata import normalize

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from flower_vfl.apps import run
from flower_vfl.data.store.memory import MemoryData, array_table
from flower_vfl.errors import ConfigError, DataError
from flower_vfl.rng import Secret
from flower_vfl.strategies import Iso, LabelDP, Marvell, MaxNorm, VerticalStrategy
from flower_vfl.strategies.gradients import noise as noise_module
from flower_vfl.strategies.gradients.noise import Noise, keyed_normals
from flower_vfl.testing.subject import batch, labels_of, send, strategy
from tests.toys import toy_config, toy_data

KEY = bytes(range(16))
ALARM = 1e-6
"""Probability that a statistical comparison fails on correct code."""

DEFENSES = [lambda base, **more: Iso(base, t=1.0, **more), MaxNorm, lambda base, **more: Marvell(base, s=4.0, **more)]


def draws(rho, steps, rows=64, width=8):
    """Return the noise of the same rows in several steps, (steps, rows, width)."""
    g = torch.zeros(rows, width, dtype=torch.float64)
    noise = Noise(torch.Generator().manual_seed(3), rho=rho, key=KEY, rows=np.arange(rows))
    return torch.stack([noise.draw(g, width) for _ in range(steps)])


def test_keyed_numbers_are_normal_and_neighbours_are_independent():
    numbers = keyed_normals(KEY, np.arange(20_000), 8, dtype=torch.float64)
    assert stats.kstest(numbers.flatten().numpy(), "norm").pvalue > ALARM
    flat = numbers.numpy()
    for one, other in (
        (flat[:, 0], flat[:, 1]),  # of one block and one pair
        (flat[:, 0], flat[:, 2]),
        (flat[:, 0], flat[:, 4]),  # of two blocks
        (flat[:-1, 0], flat[1:, 0]),  # of two rows
        (np.abs(flat[:, 0]), np.abs(flat[:, 1])),
        (flat[:, 0], keyed_normals(KEY, np.arange(20_000), 8, stream=1, dtype=torch.float64)[:, 0].numpy()),
        (flat[:, 0], keyed_normals(KEY[::-1], np.arange(20_000), 8, dtype=torch.float64)[:, 0].numpy()),
    ):
        assert stats.pearsonr(one, other).pvalue > ALARM


@pytest.mark.parametrize(("row", "stream"), [(7, 0), (2**64 - 1, 0), (7, 65_535)])
def test_keyed_numbers_are_those_of_a_cipher_and_of_box_and_muller(row, stream):
    """Compare each number with the formulas: a resumed training needs the same numbers."""
    expected = []
    for block in range(3):
        plain = struct.pack("<QQ", row, stream << 48 | block)
        words = struct.unpack("<4I", Cipher(algorithms.AES(KEY), modes.ECB()).encryptor().update(plain))
        for one, other in (words[:2], words[2:]):
            radius, angle = math.sqrt(-2 * math.log((one + 0.5) / 2**32)), 2 * math.pi * (other + 0.5) / 2**32
            expected += [radius * math.cos(angle), radius * math.sin(angle)]
    found = keyed_normals(KEY, np.array([row], dtype=np.uint64), 11, stream=stream, dtype=torch.float64)
    assert found[0].tolist() == pytest.approx(expected[:11], rel=1e-9, abs=1e-9)


@given(
    rows=st.lists(st.integers(0, 2**62), min_size=0, max_size=5),
    width=st.integers(1, 20),
    stream=st.integers(0, 2**16 - 1),
)
def test_a_number_follows_from_key_row_place_and_stream_alone(rows, width, stream):
    rows = np.array(rows, np.int64)
    numbers = keyed_normals(KEY, rows, width, stream=stream)
    assert numbers.shape == (len(rows), width)
    assert bool(torch.isfinite(numbers).all())
    for index in range(len(rows)):
        assert torch.equal(
            numbers[index], keyed_normals(KEY, rows[index : index + 1], width + 3, stream=stream)[0, :width]
        )


@pytest.mark.parametrize("word", [0, 2**32 - 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_keyed_number_is_infinite_whatever_the_cipher_gives(monkeypatch, word, dtype):
    def words(key, rows, count, stream=0):
        return np.full((len(rows), count), word, np.uint32)

    monkeypatch.setattr(noise_module, "keyed_words", words)
    numbers = keyed_normals(KEY, np.arange(3), 4, dtype=dtype)
    assert bool(torch.isfinite(numbers).all())
    assert float(numbers.abs().max()) < 6.8


def test_streams_share_no_number_also_of_wide_rows():
    row = np.array([5])
    seen = [
        set(keyed_normals(KEY, row, 4096, stream=stream, dtype=torch.float64)[0].tolist()) for stream in (0, 1, 2, 256)
    ]
    assert len(set.union(*seen)) == 4 * 4096


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.8, 1.0])
def test_one_step_has_the_same_law_and_two_steps_share_rho_whatever_rho_is(rho):
    """The mean product of two steps' noise is rho; a z-test with known variance 1 + rho^2."""
    one, other = draws(rho, 2, rows=20_000)
    assert stats.kstest(one.flatten().numpy(), "norm").pvalue > ALARM
    products = (one * other).flatten()
    sigma = math.sqrt((1 + rho**2) / len(products))
    assert abs(float(products.mean()) - rho) < stats.norm.isf(ALARM / 2) * sigma


def test_what_remains_of_the_noise_after_many_steps_is_the_persistent_share():
    """Mean of n draws: variance rho + (1 - rho) / n; chi-square interval over rows and columns."""
    rho, steps = 0.4, 50
    mean = draws(rho, steps, rows=2_000).mean(dim=0).flatten()
    expected = rho + (1 - rho) / steps
    low, high = (stats.chi2.ppf(q, len(mean)) / len(mean) * expected for q in (ALARM / 2, 1 - ALARM / 2))
    assert low < float(mean.square().mean()) < high


@pytest.mark.parametrize("make", DEFENSES)
@pytest.mark.parametrize("scope", ["joint", "per-party"])
def test_noise_of_rho_1_recurs_with_its_rows_and_fresh_noise_does_not(make, scope):
    g, y = batch(16), labels_of(64)
    defense = make(strategy({"a": 8, "b": 8}), scope=scope, rho=1.0)
    first, again, others = (send(defense, g, y, first=first)[0] for first in (0, 0, 64))
    assert torch.equal(first, again)
    assert not torch.equal(first, others)
    fresh = make(strategy({"a": 8, "b": 8}), scope=scope)
    assert not torch.equal(send(fresh, g, y)[0], send(fresh, g, y)[0])


def test_with_scope_per_party_each_party_has_its_own_persistent_noise():
    g = batch(8)
    defense = Iso(strategy({"a": 8, "b": 8}), scope="per-party", rho=1.0)
    sent = send(defense, torch.cat([g, g], dim=1), labels_of(64))[0] - torch.cat([g, g], dim=1)
    assert not torch.allclose(sent[:, :8], sent[:, 8:])


def test_another_secret_or_another_defense_of_the_chain_has_other_noise():
    g, y = batch(8), labels_of(64)
    one, other = (send(Iso(strategy(secret=secret), rho=1.0), g, y)[0] for secret in (1, 2))
    assert not torch.equal(one, other)
    inner = Iso(strategy(), rho=1.0)
    twice = send(Iso(inner, rho=1.0), g, y)[0]
    assert not torch.allclose(twice - send(inner, g, y)[0], send(inner, g, y)[0] - g)


def test_fresh_noise_of_two_defenses_of_one_kind_is_independent():
    g, y = torch.ones(64, 8), labels_of(64)
    inner = send(Iso(strategy()), g, y)[0] - g
    outer = send(Iso(Iso(strategy())), g, y)[0] - g - inner
    assert abs(float(torch.corrcoef(torch.stack([outer.flatten(), inner.flatten()]))[0, 1])) < 0.5


def of_ids(ids, secret=1, width=8):
    """Return the persistent noise of a table with these IDs in this order, (N, width)."""
    base = VerticalStrategy(
        torch.nn.Linear(width, 1), labels_of(len(ids)), ids=ids, secret=Secret(bytes([secret]) * 32, "test")
    )
    base.build({"a": (width,)}, None)
    defense = Iso(base, rho=1.0)
    defense.base.begin_batch(np.arange(len(ids)))
    g = torch.zeros(len(ids), width, dtype=torch.float64)
    return defense.noise(g, defense.base.step).draw(g, width)


@settings(max_examples=40)
@given(
    ids=st.lists(st.text(max_size=8), min_size=1, max_size=8, unique_by=lambda text: normalize("NFC", text)),
    data=st.data(),
)
def test_an_id_has_the_same_noise_whatever_its_place_the_order_and_the_other_ids(ids, data):
    noise = dict(zip(ids, of_ids(ids), strict=True))
    subset = data.draw(st.permutations(ids)).copy()[: data.draw(st.integers(1, len(ids)))]
    others = [f"another of more letters {number}" for number in range(data.draw(st.integers(0, 3)))]
    for value, again in zip([*others, *subset], of_ids([*others, *subset]), strict=True):
        assert value in others or torch.equal(again, noise[value])


def test_noise_by_ids_is_normal_and_another_secret_or_id_gives_independent_noise():
    """Each comparison fails on correct code with probability ALARM at most."""
    ids = [f"person {number}" for number in range(20_000)]
    noise, other = of_ids(ids), of_ids(ids, secret=2)
    for numbers in (noise, other):
        assert stats.kstest(numbers.flatten().numpy(), "norm").pvalue > ALARM
    for one, another in (
        (noise[:, 0], other[:, 0]),
        (noise[:-1, 0], noise[1:, 0]),
        (noise[:, 0], noise[:, 1]),
        (noise[:, 0], of_ids([f"{value}'" for value in ids])[:, 0]),
        (noise[:, 0], torch.from_numpy(np.asarray(keyed_normals(KEY, np.arange(20_000), 1)[:, 0]))),
    ):
        assert stats.pearsonr(one, another).pvalue > ALARM
        assert stats.pearsonr(one.abs(), another.abs()).pvalue > ALARM / 5


def test_without_ids_noise_follows_the_number_of_the_row():
    defense = Iso(strategy(), rho=1.0)
    g = torch.zeros(3, 8)
    defense.base.begin_batch(np.array([5, 0, 9]))
    key = defense.base.secret.key("defense", "iso", 0, "persistent")
    assert torch.equal(defense.noise(g, defense.base.step).draw(g, 8), keyed_normals(key, np.array([5, 0, 9]), 8))


def begin(strategy):
    for one in strategy.hook_targets:
        one.begin()


@pytest.mark.parametrize(("ids", "words"), [(["x", "y"], "2 IDs for 64 rows"), (["x"] * 64, "comes twice")])
def test_ids_that_do_not_fit_are_refused_before_any_party_is_asked(ids, words):
    base = VerticalStrategy(torch.nn.Linear(8, 1), labels_of(64), ids=ids, secret=Secret(bytes(32), "test"))
    begin(LabelDP(Iso(base)))  # IDs are not read where no noise is persistent
    with pytest.raises(DataError, match=words):
        begin(LabelDP(Iso(base, rho=0.5)))


def test_isotropic_noise_refuses_a_key_that_is_kept_between_trainings():
    kept = Secret(bytes(32), "test", noise_key=bytes(16))
    base = VerticalStrategy(torch.nn.Linear(8, 1), labels_of(64), secret=kept)
    with pytest.raises(ConfigError, match=r"iso with rho = 0.5 .* Unset FLOWER_VFL_NOISE_KEY_FILE here"):
        begin(LabelDP(Iso(base, rho=0.5)))
    Iso(base).begin()  # fresh noise has no key
    Marvell(base, rho=0.5).begin()


def iso_with(secret=1, ids=None, noise_key=None, rho=0.5):
    run_secret = Secret(bytes([secret]) * 32, "test", noise_key=noise_key)
    return Iso(VerticalStrategy(torch.nn.Linear(8, 1), labels_of(64), ids=ids, secret=run_secret), rho=rho)


def test_a_resumed_run_goes_on_with_the_same_persistent_noise_or_is_refused_with_the_reason():
    ids = [str(number) for number in range(64)]
    state = iso_with(ids=ids).state()
    iso_with(ids=ids).restore(state)
    iso_with(noise_key=bytes(16), rho=0.0).restore({**state, "fallbacks": 0})
    for other, words in (
        (iso_with(), r"follows the IDs of rows .* their numbers; start a new run"),
        (iso_with(ids=ids, secret=2), "another key"),
        (iso_with(ids=ids, noise_key=bytes(16)), "another key; let FLOWER_VFL_NOISE_KEY_FILE"),
    ):
        with pytest.raises(DataError, match=words):
            other.restore(state)


@pytest.mark.parametrize("make", DEFENSES)
def test_a_state_does_not_hold_the_key_of_persistent_noise(make):
    """With the key and the ID of a row, the noise could be subtracted."""
    defense = make(strategy(), rho=0.5)
    send(defense, batch(8), labels_of(64))
    assert defense.noise(batch(8), defense.base.step)._key.hex() not in json.dumps(defense.state()["persistent"])


def test_rows_are_told_apart_by_their_place_in_the_table_not_in_the_batch():
    g = batch(8)[:1].repeat(64, 1)
    defense = Iso(strategy(), rho=1.0)
    defense.base.begin_batch(np.arange(64)[::-1].copy())
    backwards = defense.protect(g, labels_of(64))[0]
    assert torch.equal(backwards.flip(0), send(defense, g, labels_of(64))[0])


def test_without_the_rows_persistent_noise_is_refused():
    defense = Iso(strategy(), rho=0.5)
    defense.base.begin_batch(None)
    with pytest.raises(ConfigError, match="begin_batch"):
        defense.protect(batch(8), labels_of(64))
    defense.base.begin_batch(np.arange(63))
    with pytest.raises(ConfigError, match="begin_batch"):
        defense.protect(batch(8), labels_of(64))
    longer = Noise(torch.Generator(), rho=0.5, key=KEY, rows=np.arange(65))
    with pytest.raises(ConfigError, match="begin_batch"):
        longer.draw(torch.zeros(64, 2), 2)


@pytest.mark.parametrize("rho", [-0.1, 1.1, math.nan, math.inf, True, "much"])
@pytest.mark.parametrize("make", DEFENSES)
def test_a_rho_that_is_no_number_from_0_to_1_is_refused(make, rho):
    with pytest.raises(ConfigError, match="rho must be a number from 0 to 1"):
        make(strategy(), rho=rho)


def test_keys_of_other_purposes_and_secrets_differ():
    keys = {Secret(bytes([value]) * 32, "test").key(*purpose) for value in (1, 2) for purpose in (("a",), ("a", 1))}
    assert len(keys) == 4
    assert {len(key) for key in keys} == {16}


class Noted(Iso):
    """Isotropic noise that records the noise of each row, in the units in which it was drawn."""

    name = "noted"
    seen: ClassVar[dict[int, list[torch.Tensor]]] = {}

    def protect(self, grads, labels, step=None):
        sent, log = super().protect(grads, labels, step)
        scale = float(grads.norm(dim=1).max()) / math.sqrt(grads.shape[1])
        for row, noise in zip(self.base.step.rows, (sent - grads) / scale, strict=True):
            self.seen.setdefault(int(row), []).append(noise)
        return sent, log


def test_two_trainings_with_one_noise_key_have_the_same_persistent_noise_and_no_other():
    g = torch.zeros(64, 8)
    drawn = {}
    for rho in (0.0, 1.0):
        for secret in (1, 2):
            defense = iso_with(secret=secret, noise_key=bytes(16), rho=rho)
            defense.base.begin_batch(np.arange(64))
            drawn[rho, secret] = defense.noise(g, defense.base.step).draw(g, 8)
    assert torch.equal(drawn[1.0, 1], drawn[1.0, 2])
    assert not torch.isclose(drawn[0.0, 1], drawn[0.0, 2]).any()


@pytest.mark.parametrize("one_secret", [False, True])
def test_only_with_one_secret_two_trainings_draw_the_same_fresh_noise(one_secret):
    """With one secret, the difference of two people's messages is that of their gradients; keep the noise key only."""
    g = torch.nn.functional.normalize(batch(8), dim=1)
    others = g.flip(0) * torch.linspace(0.1, 1.0, 64)[:, None]
    one, other = (iso_with(secret=1 if one_secret else number, noise_key=bytes(16), rho=0.0) for number in (1, 2))
    first, second = send(one, g, labels_of(64))[0], send(other, others, labels_of(64), first=64)[0]
    assert torch.allclose(first - second, g - others, atol=1e-5) is one_secret


def test_a_person_has_the_same_noise_in_a_training_of_a_part_of_the_table():
    whole = replace(toy_data(), ids=[f"person {row}" for row in range(600)])
    chosen = np.random.default_rng(1).permutation(600)[:300]
    tables = {
        name: array_table(
            name, *(side.gather(rows)[0].numpy() for side, rows in ((of.train, chosen), (of.test, np.arange(150))))
        )
        for name, of in whole.tables.items()
    }
    part = MemoryData(
        "part",
        tables,
        "label",
        replace(whole.target, train=whole.target.train[chosen]),
        ids=[whole.ids[row] for row in chosen],
    )
    config = toy_config(
        training={"epochs": 1, "validation": 0.0},
        defenses=[{"name": "tests.strategies.gradients.test_noise:Noted", "rho": 1.0}],
    )
    noise = []
    for data in (whole, part):
        Noted.seen.clear()
        run(config, data=lambda _, data=data: data)
        noise.append({data.ids[row]: drawn for row, (drawn,) in Noted.seen.items()})
    assert set(noise[1]) == {whole.ids[row] for row in chosen}
    for value, drawn in noise[1].items():
        torch.testing.assert_close(drawn, noise[0][value], rtol=1e-3, atol=1e-3)


def test_in_training_a_row_has_the_same_noise_in_every_epoch():
    Noted.seen.clear()
    config = toy_config(
        training={"epochs": 3, "validation": 0.0},
        defenses=[{"name": "tests.strategies.gradients.test_noise:Noted", "rho": 1.0}],
    )
    run(config, data=lambda _: toy_data())
    assert {len(noises) for noises in Noted.seen.values()} == {3}
    for first, *others in Noted.seen.values():
        for other in others:
            torch.testing.assert_close(first, other, rtol=1e-3, atol=1e-3)
