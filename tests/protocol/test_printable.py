"""What is told of an error."""

import pytest

from flower_vfl.errors import DataError
from flower_vfl.protocol.printable import reason_of, words_of


class Mute(Exception):
    """It has no text: making it fails, or it is none."""

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
    ("error", "words"),
    [
        (Mute({}), "Mute: its text cannot be had (KeyError)"),
        (Mute(3), "Mute: its text cannot be had (TypeError)"),
        (Deep(), "Deep: its text cannot be had (RecursionError)"),
    ],
)
def test_an_error_whose_text_cannot_be_had_is_told_by_its_name(error, words):
    assert words_of(error) == reason_of(error) == words
    assert reason_of(OwnMute()) == "its text cannot be had (TypeError)"


def test_an_error_of_this_package_says_enough_by_itself():
    assert reason_of(DataError("no rows")) == "no rows"
    assert words_of(DataError("no rows")) == "DataError: no rows"
    assert reason_of(ValueError("x" * 30), 20) == "ValueError [22 characters left out] " + "x" * 10
    assert reason_of(DataError("x" * 30), 20) == "x" * 10 + " [10 characters left out] " + "x" * 10
