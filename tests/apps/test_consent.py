"""A node takes part in what its owner allows; the error at the label party names the key to change."""

from __future__ import annotations

from datetime import date

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from flower_vfl.apps.consent import Consent
from flower_vfl.apps.node import Node
from flower_vfl.config import to_run_config
from flower_vfl.errors import ConfigError, PartyError, PermissionDeniedError
from flower_vfl.transport.signing import LABEL_KEY_VARIABLE, is_signed, read_public_key, signer_of_this_host
from tests.apps.test_node import CONFIG, deploy, folders, nodes_of
from tests.grids import DeployedGrid
from tests.toys import toy_config

__all__ = ["folders"]


def write_key(path, key=None):
    """Write a private key, and return the text of its public one."""
    key = key or Ed25519PrivateKey.generate()
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode() + " label party"


def refused(folders, monkeypatch, tmp_path, nodes, config=CONFIG, grid=DeployedGrid):
    root, dataset = folders
    with pytest.raises(PartyError) as caught:
        deploy(nodes, root / dataset.label_party, monkeypatch, tmp_path, config, grid)
    return str(caught.value)


def test_without_its_owners_permission_a_node_does_not_train(folders, monkeypatch, tmp_path):
    nodes = [{key: value for key, value in node.items() if key != "train-epochs"} for node in nodes_of(folders)]
    message = refused(folders, monkeypatch, tmp_path, nodes)
    assert "allows no training; its owner can: train-epochs=N in the --node-config of its SuperNode" in message


NAMED = toy_config(
    data={"name": "synthetic"}, transport={"kind": "stream"}, training={"epochs": 1}, parties={"attackers": ["a"]}
)


@pytest.mark.parametrize(
    ("limit", "config", "words"),
    [
        ({"train-epochs": 0}, CONFIG, "at most 0 epochs (train-epochs), this one has 1; its owner can change it: "),
        ({"train-until": "2026-01-31"}, CONFIG, "until 2026-01-31 (train-until), today is 2"),
        ({"train-attackers": False}, NAMED, "this one names a; its owner can change it: train-attackers=true in the"),
        ({"train-alignment": "0" * 64}, CONFIG, "on the rows 0000000000000000 alone (train-alignment), its data has"),
    ],
)
def test_what_is_more_than_the_owner_allows_is_refused(limit, config, words, folders, monkeypatch, tmp_path):
    if config is NAMED:
        config = config.model_copy(deep=True)
        config.parties.attackers[:] = [nodes_of(folders)[0]["party"]]
        words = words.replace("names a;", f"names {config.parties.attackers[0]};")
    assert words in refused(folders, monkeypatch, tmp_path, nodes_of(folders, **limit), config)


@pytest.mark.parametrize("kind", ["stream", "messages"])
def test_a_training_within_all_limits_and_signed_takes_place(kind, folders, monkeypatch, tmp_path):
    root, dataset = folders
    public = write_key(tmp_path / "label.key")
    monkeypatch.setenv(LABEL_KEY_VARIABLE, str(tmp_path / "label.key"))
    limits = {"train-epochs": 1, "train-until": "2999-12-31", "train-attackers": False}
    limits |= {"train-alignment": dataset.alignment.digest[:16], "label-key": public}
    config = CONFIG.model_copy(update={"transport": CONFIG.transport.model_copy(update={"kind": kind})})
    done = deploy(nodes_of(folders, **limits), root / dataset.label_party, monkeypatch, tmp_path, config)
    assert done.summary["status"] == "finished"


class Changing(DeployedGrid):
    """A grid that replaces the address in offers on their way to the parties."""

    def push_messages(self, messages):
        messages = list(messages)
        for message in messages:
            message.content.config_records["offer"]["address"] = "127.0.0.1:9"
        return super().push_messages(messages)


@pytest.mark.parametrize("how", ["unsigned", "another key", "changed on the way"])
def test_an_offer_that_the_named_label_party_has_not_signed_is_refused(how, folders, monkeypatch, tmp_path):
    public = write_key(tmp_path / "label.key")
    if how == "another key":
        write_key(tmp_path / "label.key")
    if how != "unsigned":
        monkeypatch.setenv(LABEL_KEY_VARIABLE, str(tmp_path / "label.key"))
    grid = Changing if how == "changed on the way" else DeployedGrid
    message = refused(folders, monkeypatch, tmp_path, nodes_of(folders, **{"label-key": public}), grid=grid)
    assert "takes part only in what its label party has signed (label-key), and this offer is not" in message


def test_a_signature_covers_every_field_and_the_run_configuration(monkeypatch, tmp_path):
    public = read_public_key(write_key(tmp_path / "label.key"))
    monkeypatch.setenv(LABEL_KEY_VARIABLE, str(tmp_path / "label.key"))
    run_config = to_run_config(CONFIG)
    offer = {"session": "s", "simulation": False, "limit": 1, "token": b"\x00\xff"}
    signed = signer_of_this_host(run_config)(offer)
    assert is_signed(signed, run_config, public)
    assert is_signed(dict(reversed(signed.items())), dict(reversed(run_config.items())), public)
    for changed in ({"session": "t"}, {"simulation": True}, {"limit": True}, {"token": b"\x00"}, {"more": ""}):
        assert not is_signed({**signed, **changed}, run_config, public)
    assert not is_signed(signed, {**run_config, "training-epochs": 99}, public)
    assert not is_signed({name: signed[name] for name in signed if name != "limit"}, run_config, public)


def test_the_last_day_counts():
    consent = Consent.of({"train-until": "2027-01-31"}, "a")
    consent.check_offer({}, {}, today=lambda: date(2027, 1, 31))
    with pytest.raises(PermissionDeniedError, match="a later train-until in the --node-config"):
        consent.check_offer({}, {}, today=lambda: date(2027, 2, 1))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"train-epochs": "3"}, "train-epochs in --node-config is '3'; it must be a whole number"),
        ({"train-epochs": True}, "must be a whole number"),
        ({"train-epochs": -1}, "must be a whole number of at least 0"),
        ({"train-until": "31.1.2027"}, "must be a day, such as '2027-01-31'"),
        ({"train-until": 2027}, "must be a day"),
        ({"train-attackers": "no"}, "must be true or false"),
        ({"train-alignment": "abc"}, "at least the 16 hexadecimal digits that `flower-vfl doctor` shows"),
        ({"label-key": "ssh-rsa AAAA"}, "is no public Ed25519 key"),
        ({"label-key": ""}, "is no public Ed25519 key"),
    ],
)
def test_an_invalid_limit_is_an_error_and_allows_nothing(given, words):
    with pytest.raises(ConfigError, match=words):
        Consent.of(given, "a")


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("train-epoch", "train-epochs"),
        ("train_until", "train-until"),
        ("align-max-id", "align-max-ids"),
        ("align_max_ids", "align-max-ids"),
        ("predict_rows_per_day", "predict-rows-per-day"),
        *((name, "label-key") for name in ("label_key", "label-keys", "lable-key")),
    ],
)
def test_a_misspelt_limit_is_an_error_and_not_no_limit(key, meant):
    with pytest.raises(ConfigError, match=f"no key '{key}'; did you mean '{meant}'"):
        Node.of({"party": "a", key: 1})


@pytest.mark.parametrize("what", ["nothing", "no key", "another kind"])
def test_a_private_key_that_cannot_sign_ends_the_run_at_the_label_party(what, monkeypatch, tmp_path):
    path = tmp_path / "label.key"
    if what == "no key":
        path.write_text("x")
    if what == "another kind":
        write_key(path, generate_private_key(SECP256R1()))
    monkeypatch.setenv(LABEL_KEY_VARIABLE, str(path))
    with pytest.raises(ConfigError, match=r"FLOWER_VFL_LABEL_KEY_FILE names .*`ssh-keygen -t ed25519"):
        signer_of_this_host({})


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"epochs": 2, "pretrain": 1}, ""),
        (
            {"epochs": 3, "pretrain": 1},
            "this one has 3 and 1 of pre-training.*training.epochs and training.pretrain to",
        ),
        ({"epochs": 2, "refit": 9}, ""),
        ({"epochs": 3, "refit": 1}, "this one has 4"),
        ({"epochs": 90, "gradients": False, "pretrain": 2}, ""),
        ({"epochs": 90, "gradients": False, "pretrain": 3}, "this one has 1 and 3 of pre-training"),
    ],
)
def test_an_owners_epochs_count_all_passes_over_the_partys_rows(training, words):
    consent = Consent("a", epochs=3)
    if not words:
        consent.check(toy_config(training=training))
        return
    with pytest.raises(PermissionDeniedError, match=words):
        consent.check(toy_config(training=training))
