"""The tree of errors that this package raises; every message names the given value, the allowed ones and the cure."""

from __future__ import annotations


class FlowerVflError(Exception):
    """Base class of every error that flower-vfl raises on purpose."""


class InputError(FlowerVflError):
    """A wrong input of the user; the command line ends with exit code 2."""


class ConfigError(InputError):
    """A configuration value, or a combination of values, that is unknown or impossible."""


class NotRestoredError(ConfigError):
    """A rebuilt model computes other outputs than the trained one: something that it learned was not saved."""


class ArgumentError(InputError, ValueError):
    """An argument of a function has a shape or a value that the function does not allow."""


class DataError(InputError):
    """A file, a column, an ID or a label that cannot be used."""


class OutputExistsError(InputError):
    """The output folder has content that would be overwritten."""


class FolderInUseError(OutputExistsError):
    """Another process works in the folder; the operating system releases the lock when that process ends."""


class ProtocolError(InputError):
    """The other side sent something that the protocol does not allow; nothing of it was used."""


class NotFiniteError(ProtocolError):
    """A received tensor has values that are not finite: if both sides follow the protocol, training has diverged."""


class PermissionDeniedError(InputError):
    """The owner of a party does not allow a request to it."""


class WithheldError(FlowerVflError):
    """The redacted error of a deployed party; the text of the original stays in the log of its own host."""


class StorageError(FlowerVflError, OSError):
    """A file could not be written: the disk is full or fails. What was there before is whole."""


class SessionError(FlowerVflError):
    """A session could not be opened, or it broke."""


class RunStoppedError(SessionError):
    """A run of Flower was stopped on purpose."""


class UnreachableError(SessionError):
    """The label party's session endpoint did not answer; nothing of the session was used yet."""


class SetupError(InputError, SessionError):
    """The machine or the network is not set up as the run needs it; the message names the setting."""


class PartyError(SessionError):
    """A party died, refused or reported an error; the message names the party and the reason."""


class PartyLostError(PartyError):
    """A party died or lost its connection, without giving a reason; it may come back.

    Attributes
    ----------
    party : str
        The party's name.
    """

    def __init__(self, message: str, party: str = "") -> None:
        super().__init__(message)
        self.party = party


class UnprotectedBatchError(FlowerVflError):
    """A defense could not protect a batch; the batch must not be sent as it is."""


class TrainingError(FlowerVflError):
    """Training cannot go on: the loss is not finite, or a model does not fit its data."""


class CheckError(FlowerVflError, AssertionError):
    """A user's own method fails the checks for every method; the message lists all problems."""
