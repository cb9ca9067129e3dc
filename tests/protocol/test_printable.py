"""The texts of errors in logs and messages."""

import pytest

from flower_vfl.errors import DataError
from flower_vfl.protocol.printable import reason_of, words_of


class Mute(Exception):
    """An error without a text: making it fails, or it is no string."""

    def __init__(self, text):
        self.text = text

    def __str__(self):
        return self.text["absent"] if isinstance(self.text, dict) else self.text


class Deep(Exception):
    def __str__(self):
        return str(self)


class OwnMute(DataError):
    __str__ = Mute.__str__
    text = 3


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Mute({}), "Mute: its text cannot be had (KeyError)"),
        (Mute(3), "Mute: its text cannot be had (TypeError)"),
        (Deep(), "Deep: its text cannot be had (RecursionError)"),
    ],
)
def test_an_error_whose_text_cannot_be_had_is_described_by_its_name(error, expected):
    assert words_of(error) == reason_of(error) == expected
    assert reason_of(OwnMute()) == "its text cannot be had (TypeError)"


def test_an_error_of_this_package_is_described_by_its_text_and_long_texts_are_shortened():
    assert reason_of(DataError("no rows")) == "no rows"
    assert words_of(DataError("no rows")) == "DataError: no rows"
    assert reason_of(ValueError("x" * 30), 20) == "ValueError [22 characters left out] " + "x" * 10
    assert reason_of(DataError("x" * 30), 20) == "x" * 10 + " [10 characters left out] " + "x" * 10
