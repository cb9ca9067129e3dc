"""Words of another party, or of somebody's own method, as they can stand in a log, on a terminal or in a result."""

from __future__ import annotations

from flower_vfl.errors import FlowerVflError


def words_of(error: BaseException, most: int = 10_000) -> str:
    """Return what an error is and says, of a long text its beginning and its end: it may quote a whole tensor.

    Examples
    --------
    >>> words_of(ValueError("no")), words_of(StopIteration())
    ('ValueError: no', 'StopIteration')
    """
    return shortened(": ".join(filter(None, (type(error).__name__, _said(error)))), most)


def reason_of(error: BaseException, most: int = 10_000) -> str:
    """Return what an error says where it is one of this package's, which says enough, and else `words_of` it.

    Examples
    --------
    >>> from flower_vfl.errors import ConfigError
    >>> reason_of(ConfigError("no")), reason_of(ValueError("no"))
    ('no', 'ValueError: no')
    """
    return shortened(_said(error), most) if isinstance(error, FlowerVflError) else words_of(error, most)


def _said(error: BaseException) -> str:
    """Return the text of an error; making it runs code of somebody else's, which may fail in turn."""
    try:
        return str(error)
    except Exception as failure:  # noqa: BLE001 - whatever it is, the error itself must be told
        return f"its text cannot be had ({type(failure).__name__})"


def shortened(text: str, most: int) -> str:
    """Return a text, of one that is longer than so many characters as many from its beginning and its end.

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
    r"""Return what another party said, on one line and with nothing that a terminal obeys.

    What cannot be printed (line ends, escape sequences, marks that turn the direction of writing) is spelt out, so that
    no party writes lines of its own into another's log.

    Parameters
    ----------
    words : object
        What it said.
    most : int
        Characters of it that are kept.

    Examples
    --------
    >>> printable("gone\x1b[2J\nINFO all is well")
    'gone\\x1b[2J\\nINFO all is well'
    """
    text = str(words)[:most]
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
