"""A party that cannot reach the session endpoint takes part through Flower's messages, if the configuration says so."""

import logging

import pytest

from flower_vfl.apps import run
from flower_vfl.errors import PartyError
from tests.toys import toy_config, toy_data

CLOSED = {"kind": "stream", "advertise": "127.9.9.9", "connect_timeout": 16.0}
"""The endpoint listens on 127.0.0.1 and advertises another address: parties fail as behind a firewall."""


@pytest.mark.slow
def test_the_run_falls_back_says_so_and_ends_with_the_weights_of_any_other_transport(caplog):
    caplog.set_level(logging.WARNING)
    behind = run(toy_config(transport={**CLOSED, "fallback": "messages"}), data=lambda _: toy_data())
    assert behind.summary["weights"] == run(toy_config(), data=lambda _: toy_data()).summary["weights"]
    assert "takes part through Flower's own messages, which is slow (transport.fallback)" in caplog.text
    assert "127.9.9.9" in caplog.text


@pytest.mark.slow
def test_without_a_fallback_the_error_names_the_address_and_what_to_check():
    words = r"session endpoint 127\.9\.9\.9:\d+ could not be reached within 8 s: that is an address of this host"
    with pytest.raises(PartyError, match=words):
        run(toy_config(transport=CLOSED), data=lambda _: toy_data())
