"""The version of this package: both sides of a session must have the same."""

VERSION = "0.1.0"
