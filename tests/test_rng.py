"""Seeds of the schedule and of secrets never coincide, and a secret appears in no text, copy or pickle."""

import copy
import inspect
import itertools
import json
import pickle
import random

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest

from flower_vfl.errors import ConfigError
from flower_vfl.rng import (
    NOISE_KEY_FILE_VARIABLE,
    SECRET_FILE_VARIABLE,
    Keystream,
    Secret,
    derive_seed,
    schedule_root,
    simulation_secret,
)

VALUE = b"only this host knows this value!"
PURPOSES = [
    (),
    ("noise",),
    ("weights",),
    ("weights", "top"),
    ("noise", 0),
    ("noise", 1),
    ("noise", 10),
    ("noise", 1, 0),
]
PINNED = [5536231831209853152, 8520264902433707414]


@pytest.fixture
def secret_file(tmp_path, monkeypatch):
    path = tmp_path / "secret"
    monkeypatch.setenv(SECRET_FILE_VARIABLE, str(path))
    return path


def test_different_purposes_and_parties_give_different_seeds():
    secrets = [Secret.for_simulation(seed, party) for seed in (0, 1) for party in ("a", "b", "label")]
    seeds = [secret.seed(*purpose) for secret in secrets for purpose in PURPOSES]
    assert len(set(seeds)) == len(seeds)


@given(st.binary(min_size=16, max_size=64), st.lists(st.text() | st.integers()))
def test_a_seed_is_reproducible_and_fits_every_generator(value, purpose):
    seed = Secret(value, "file").seed(*purpose)
    assert seed == Secret(value, "file").seed(*purpose) == derive_seed(value, *purpose)
    assert 0 <= seed < 2**63
    torch.Generator().manual_seed(seed)


def test_the_seeds_are_pinned_so_that_another_version_cannot_silently_change_a_run():
    assert Secret.for_simulation(3, "a").seed("noise") == PINNED[0]
    assert derive_seed(schedule_root(3), "epoch", 1) == PINNED[1]


@given(st.integers(0, 2**63 - 1), st.sampled_from(["a", "b", "label", "schedule", ""]))
def test_the_order_of_batches_and_a_simulation_secret_never_coincide(seed, party):
    ordered = {derive_seed(schedule_root(seed), *purpose) for purpose in [*PURPOSES, ("validation",), ("epoch", 1)]}
    secret = Secret.for_simulation(seed, party)
    assert ordered.isdisjoint(secret.seed(*purpose) for purpose in [*PURPOSES, ("validation",), ("epoch", 1)])


def test_generators_of_one_purpose_agree_and_those_of_two_do_not():
    secret = Secret(VALUE, "file")
    draws = [torch.randn(8, generator=secret.generator(*purpose)) for purpose in PURPOSES]
    assert torch.equal(draws[1], torch.randn(8, generator=secret.generator("noise")))
    assert not any(torch.equal(one, two) for one, two in itertools.combinations(draws, 2))


def test_no_search_of_32_bits_finds_the_state_of_a_generator_on_the_cpu():
    """`manual_seed` fills the 624 words of MT19937 by a recurrence from 32 bits; these words follow from 256."""
    words = Secret(VALUE, "file").generator("noise").get_state().numpy().view("<u8")[3:627].astype(object)
    by_recurrence = [(1812433253 * (one ^ (one >> 30)) + i) % 2**32 for i, one in enumerate(words[:-1], start=1)]
    assert max(words) < 2**32
    assert sum(one == other for one, other in zip(words[1:], by_recurrence, strict=True)) < 3


def test_numbers_of_a_generator_are_those_of_mersenne_twister_with_its_state():
    generator = Secret(VALUE, "file").generator("noise")
    words = generator.get_state().numpy().view("<u8")[3:627].astype(np.uint32)
    reference = np.random.MT19937()
    reference.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": 624}}
    drawn = torch.randint(2**16, (2000,), generator=generator)
    assert drawn.tolist() == (reference.random_raw(2000) % 2**16).tolist()


def test_a_keystream_is_aes_in_counter_mode():
    """FIPS 197, appendix C.3: the block 00112233...ff under the key 0001...1f; here it encrypts a counter of 0."""
    key = bytes(range(32))
    block = Cipher(algorithms.AES256(key), modes.ECB()).encryptor()
    assert block.update(bytes.fromhex("00112233445566778899aabbccddeeff")).hex() == "8ea2b7ca516745bfeafc49904b496089"
    expected = np.frombuffer(block.update(bytes(16) + (1).to_bytes(16, "big")), "<u8")
    stream = Keystream(key)
    found = [*stream.words(1), *stream.words(3)]
    assert found == expected.tolist()


def test_numbers_of_a_keystream_are_uniform_and_below_one():
    numbers = Keystream(VALUE).uniform(3, 100_000)
    assert numbers.shape == (3, 100_000)
    assert 0.0 <= numbers.min() < numbers.max() < 1.0
    assert kstest(numbers.ravel(), "uniform").pvalue > 1e-7


def test_each_purpose_and_each_data_has_a_keystream_independent_of_earlier_draws():
    secret, drawn = Secret(VALUE, "file"), Keystream(VALUE)
    drawn.uniform(5)
    assert drawn.of(b"labels").uniform(4).tolist() == Keystream(VALUE).of(b"labels").uniform(4).tolist()
    streams = [*(secret.keystream(*purpose) for purpose in PURPOSES), Keystream(VALUE)]
    streams += [Keystream(VALUE).of(data) for data in (b"", b"labels", b"other labels")]
    firsts = {int(stream.words(1)[0]) for stream in streams}
    assert len(firsts) == len(streams)


def test_the_operating_system_gives_every_party_another_secret(monkeypatch):
    monkeypatch.delenv(SECRET_FILE_VARIABLE, raising=False)
    secrets = [Secret.of_this_host() for _ in range(5)]
    assert {secret.origin for secret in secrets} == {"operating system"}
    assert len({secret.seed("noise") for secret in secrets}) == 5


def test_a_file_with_the_secret_of_a_simulation_makes_a_deployment_repeat_it(secret_file):
    secret_file.write_bytes(simulation_secret(3, "a"))
    assert Secret.of_this_host().seed("noise") == Secret.for_simulation(3, "a").seed("noise")


def test_a_secret_file_gives_the_same_secret_again(secret_file):
    secret_file.write_bytes(VALUE)
    secret = Secret.of_this_host()
    assert secret.origin == "file"
    assert secret.seed("noise") == Secret.of_this_host().seed("noise") == Secret(VALUE, "file").seed("noise")


def test_a_noise_key_stays_while_all_else_is_drawn_anew(tmp_path, monkeypatch):
    monkeypatch.delenv(SECRET_FILE_VARIABLE, raising=False)
    monkeypatch.setenv(NOISE_KEY_FILE_VARIABLE, str(tmp_path / "key"))
    (tmp_path / "key").write_bytes(VALUE)
    one, other = Secret.of_this_host(), Secret.of_this_host()
    assert one.key("noise") == other.key("noise") == Secret(VALUE, "file").key("noise")
    assert one.seed("noise") != other.seed("noise")
    one.keep(tmp_path / "kept")
    again = Secret.of_this_host(tmp_path / "kept")
    assert (again.seed("noise"), again.key("noise")) == (one.seed("noise"), one.key("noise"))
    assert VALUE not in (tmp_path / "kept").read_bytes()
    (tmp_path / "key").write_bytes(VALUE[:15])
    with pytest.raises(ConfigError, match=f"{NOISE_KEY_FILE_VARIABLE} names .*15 bytes.*at least 16"):
        Secret.of_this_host()


def test_a_secret_file_alone_repeats_fresh_noise_too_and_with_a_noise_key_the_key_is_that(secret_file, monkeypatch):
    secret_file.write_bytes(VALUE)
    monkeypatch.delenv(NOISE_KEY_FILE_VARIABLE, raising=False)
    assert Secret.of_this_host().seed("noise") == Secret.of_this_host().seed("noise")
    monkeypatch.setenv(NOISE_KEY_FILE_VARIABLE, str(secret_file.with_name("key")))
    secret_file.with_name("key").write_bytes(VALUE[::-1])
    secret = Secret.of_this_host()
    assert secret.key("noise") == Secret(VALUE[::-1], "file").key("noise") != Secret(VALUE, "file").key("noise")
    assert secret.seed("noise") == Secret(VALUE, "file").seed("noise")


@pytest.mark.parametrize("size", [0, 1, 15])
def test_a_secret_that_is_too_short_is_refused(secret_file, size):
    secret_file.write_bytes(VALUE[:size])
    with pytest.raises(ConfigError, match=f"{SECRET_FILE_VARIABLE} names .*{size} bytes.*at least 16"):
        Secret.of_this_host()
    with pytest.raises(ConfigError, match="at least 16"):
        Secret(VALUE[:size], "file")
    secret_file.write_bytes(VALUE[:16])
    assert Secret.of_this_host().origin == "file"


def test_a_secret_file_that_is_missing_or_a_folder_is_refused(secret_file):
    with pytest.raises(
        ConfigError, match=f"{SECRET_FILE_VARIABLE} names '{secret_file}', which cannot be read: No such"
    ):
        Secret.of_this_host()
    secret_file.mkdir()
    with pytest.raises(ConfigError, match="Is a directory"):
        Secret.of_this_host()


def test_a_secret_shows_itself_in_no_text():
    secret = Secret(VALUE, "file")
    texts = [repr(secret), str(secret), f"{secret}", f"{secret!r}", repr([secret]), repr({"s": secret})]
    for text in texts:
        assert "only this host" not in text
        assert VALUE.hex() not in text
    assert repr(secret) == "Secret(<hidden>, origin='file')"
    assert not hasattr(secret, "__dict__")
    with pytest.raises(TypeError):
        format(secret, "x")


def test_a_secret_cannot_be_serialised_or_copied():
    secret = Secret(VALUE, "file")
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match="never leaves its party") as caught:
            pickle.dumps({"secret": secret}, protocol)
        assert "only this host" not in str(caught.value)
    for attempt in (copy.copy, copy.deepcopy, json.dumps):
        with pytest.raises(TypeError):
            attempt(secret)
    with pytest.raises(TypeError, match="never leaves its party"):
        pickle.dumps(secret.keystream("flips"))


def test_no_exception_holds_a_secret(secret_file):
    secret_file.write_bytes(VALUE[:15])
    for attempt in (Secret.of_this_host, lambda: Secret(VALUE[:15], "file")):
        with pytest.raises(ConfigError) as caught:
            attempt()
        assert "only this host" not in str(caught.value)
        assert caught.value.__cause__ is None


def test_deriving_touches_no_global_generator():
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002 - the global generator is tested
    random.seed(5)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    secret = Secret.for_simulation(1, "a")
    secret.seed("noise")
    torch.rand(3, generator=secret.generator("noise"))
    Secret.of_this_host()
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002
    assert before[2] == random.getstate()


def test_nothing_in_a_deployment_takes_a_seed_of_the_run():
    assert list(inspect.signature(Secret.of_this_host).parameters) == ["kept"]  # a file of this host


def test_a_secret_drawn_for_a_training_is_kept_for_its_owner_alone_and_comes_back(tmp_path, monkeypatch):
    monkeypatch.delenv(SECRET_FILE_VARIABLE, raising=False)
    kept = tmp_path / "new" / "secret"
    first = Secret.of_this_host(kept)
    assert not kept.exists()
    first.keep(kept)
    assert kept.stat().st_mode & 0o777 == 0o600
    again = Secret.of_this_host(kept)
    assert again.seed("noise") == first.seed("noise") != Secret.of_this_host().seed("noise")
    again.keep(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_secret_takes_the_place_of_a_file_that_others_could_read(tmp_path, monkeypatch):
    monkeypatch.delenv(SECRET_FILE_VARIABLE, raising=False)
    kept = tmp_path / "secret"
    kept.write_bytes(b"old")
    kept.chmod(0o644)
    with kept.open("rb") as opened:  # by another process, before
        Secret.of_this_host().keep(kept)
        assert opened.read() == b"old"
    assert kept.stat().st_mode & 0o777 == 0o600


def test_a_secret_that_others_gave_is_not_copied(tmp_path, secret_file):
    secret_file.write_bytes(VALUE)
    Secret.of_this_host().keep(tmp_path / "copy")
    Secret.for_simulation(1, "a").keep(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
