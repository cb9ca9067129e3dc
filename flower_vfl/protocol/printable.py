"""Words of another party as they can stand in a log or on a terminal."""

from __future__ import annotations


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
