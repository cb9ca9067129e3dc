"""The command line: `program` puts the commands together, the other modules hold them by subject."""

from flower_vfl.cli.program import app, main

__all__ = ["app", "main"]
