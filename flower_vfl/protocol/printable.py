"""Text of another party, or of a user's own method, made fit for a log, a terminal or a result."""

from __future__ import annotations

from flower_vfl.errors import FlowerVflError


def words_of(error: BaseException, most: int = 10_000) -> str:
    """Return the type and the text of an error, shortened in the middle: it may quote a whole tensor.

    Examples
    --------
    >>> words_of(ValueError("no")), words_of(StopIteration())
    ('ValueError: no', 'StopIteration')
    """
    return shortened(": ".join(filter(None, (type(error).__name__, _text(error)))), most)


def reason_of(error: BaseException, most: int = 10_000) -> str:
    """Return the text of an error of this package, or `words_of` any other error.

    Examples
    --------
    >>> from flower_vfl.errors import ConfigError
    >>> reason_of(ConfigError("no")), reason_of(ValueError("no"))
    ('no', 'ValueError: no')
    """
    return shortened(_text(error), most) if isinstance(error, FlowerVflError) else words_of(error, most)


def _text(error: BaseException) -> str:
    """Return the text of an error; the conversion runs foreign code, which may fail in turn."""
    try:
        return str(error)
    except Exception as failure:  # noqa: BLE001 - whatever it is, the error itself must be reported
        return f"its text cannot be had ({type(failure).__name__})"


def shortened(text: str, most: int) -> str:
    """Return a text with at most `most` of its characters; a longer one loses its middle.

    Examples
    --------
    >>> shortened("beginning, middle, end", 12)
    'beginn [10 characters left out] e, end'
    """
    if len(text) <= most:
        return text
    begin = (most + 1) // 2
    return f"{text[:begin]} [{len(text) - most:,} characters left out] {text[len(text) - (most - begin) :]}"


def printable(words: object, most: int = 2000) -> str:
    r"""Return another party's text on one line, without control sequences of a terminal.

    Unprintable characters (line ends, escape sequences, marks of the direction of writing) are escaped, so that no
    party writes lines of its own into another's log.

    Parameters
    ----------
    words : object
        Text of the other party.
    most : int
        Number of its characters that are kept.

    Examples
    --------
    >>> printable("gone\x1b[2J\nINFO all is well")
    'gone\\x1b[2J\\nINFO all is well'
    """
    text = str(words)[:most]
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
