"""The certificates of a run are fresh, short-lived and for one purpose each, and no text shows their keys."""

import datetime
from contextlib import nullcontext

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from flower_vfl.errors import SessionError
from flower_vfl.transport import authority as module
from flower_vfl.transport.authority import SERVER_NAME, Authority, SessionKey, check_clock, public_key


@pytest.fixture(scope="module")
def authority():
    return Authority()


def parse(pem):
    return x509.load_pem_x509_certificate(pem)


def name_of(certificate):
    (attribute,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return attribute.value


def test_the_authority_signs_its_certificates_and_another_one_did_not(authority):
    root = parse(authority.certificate)
    for identity in (authority.server(), authority.client("2")):
        parse(identity.certificate).verify_directly_issued_by(root)
        with pytest.raises((InvalidSignature, ValueError)):
            parse(identity.certificate).verify_directly_issued_by(parse(Authority().certificate))


def test_each_certificate_names_its_node_and_serves_one_purpose(authority):
    server, client = parse(authority.server().certificate), parse(authority.client("1234").certificate)
    assert (name_of(server), name_of(client)) == (SERVER_NAME, "1234")
    usages = [certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage) for certificate in (server, client)]
    assert [list(usage.value) for usage in usages] == [
        [ExtendedKeyUsageOID.SERVER_AUTH],
        [ExtendedKeyUsageOID.CLIENT_AUTH],
    ]
    assert all(usage.critical for usage in usages)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [SERVER_NAME, f"*.{SERVER_NAME}"]


def test_a_partys_certificate_cannot_sign_others(authority):
    for pem, is_authority in ((authority.certificate, True), (authority.client("2").certificate, False)):
        constraints = parse(pem).extensions.get_extension_for_class(x509.BasicConstraints)
        assert constraints.critical
        assert constraints.value.ca is is_authority


def test_certificates_are_valid_from_a_day_ago_and_those_of_offers_not_for_long(authority):
    now = datetime.datetime.now(datetime.UTC)
    key = public_key(SessionKey().public)
    run = [authority.certificate, authority.server().certificate, authority.certify("2", key)]
    hour, month = datetime.timedelta(hours=1), datetime.timedelta(days=31)
    offers = [(authority.client("2").certificate, hour), (authority.client("2", seconds=1e9).certificate, month)]
    for pem, expected in [(pem, month) for pem in run] + offers:
        certificate = parse(pem)
        assert certificate.not_valid_before_utc < now - datetime.timedelta(hours=23)
        assert abs(certificate.not_valid_after_utc - now - expected) < datetime.timedelta(minutes=5)


def test_every_key_is_fresh_and_belongs_to_its_certificate(authority):
    identities = [authority.server(), authority.client("2"), authority.client("2"), Authority().server()]
    for identity in identities:
        key = serialization.load_pem_private_key(identity.key, password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        assert key.public_key() == parse(identity.certificate).public_key()
    assert len({identity.key for identity in identities}) == len(identities)
    serials = [parse(identity.certificate).serial_number for identity in identities]
    assert len(set(serials)) == len(serials)


def test_no_text_shows_a_key(authority):
    identity = authority.client("2")
    for text in (
        repr(identity),
        str(identity),
        f"{identity}",
        repr([identity]),
        repr(authority),
        repr(vars(authority)),
    ):
        assert "PRIVATE" not in text
        assert identity.key.decode() not in text


@pytest.mark.parametrize(("days", "refused"), [(-2, True), (-0.9, False), (0, False), (30, False), (32, True)])
def test_a_clock_that_is_days_off_is_an_error_with_both_times(authority, monkeypatch, days, refused):
    now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, zone=None):
            return now

    certificate = authority.certificate
    monkeypatch.setattr(module.datetime, "datetime", Clock)
    message = f"the clocks of the two hosts differ: .* this host's is {now:%Y-%m-%d %H:%M}; set the wrong one"
    with pytest.raises(SessionError, match=message) if refused else nullcontext():
        check_clock(certificate)
