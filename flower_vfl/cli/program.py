"""The command line; never a traceback for bad input.

Exit codes: 0 success, 1 failure, 2 bad input, 130 interrupted (Ctrl-C), 143 terminated (SIGTERM).
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from flower_vfl.cli.budget import budget
from flower_vfl.cli.data import data_app, init
from flower_vfl.cli.deployment import keys, show_version, wait, write_app
from flower_vfl.cli.listing import doctor, explain_key, methods, presets, report, watch
from flower_vfl.cli.parameters import Command
from flower_vfl.cli.running import align, demo, predict, run, sweep, tune
from flower_vfl.errors import FlowerVflError, InputError
from flower_vfl.files import keep_private

_NAME = "flower-vfl"
app = typer.Typer(
    name=_NAME,
    help="Vertical federated learning for Flower in which label privacy is measured.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    suggest_commands=False,  # click does
)
"""The command line; `main` also turns errors into messages and exit codes."""
_COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo,
    "run": run,
    "sweep": sweep,
    "tune": tune,
    "predict": predict,
    "report": report,
    "watch": watch,
    "presets": presets,
    "methods": methods,
    "config": explain_key,
    "doctor": doctor,
    "init": init,
    "align": align,
    "budget": budget,
    "app": write_app,
    "keys": keys,
    "wait": wait,
}
"""The commands by name, in the order in which help lists them."""

for _name, _command in _COMMANDS.items():
    app.command(_name, cls=Command)(_command)
app.add_typer(data_app, name="data")

_INTERRUPTED = 130
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@app.callback()
def _options(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log every stage, not only warnings.")] = False,
    _: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show what is installed, and exit.")
    ] = False,
) -> None:
    from flower_vfl.terminal import show_log

    show_log(verbose=verbose)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    signals: list[int] = []

    def terminate(number: int, frame: object) -> None:
        signals.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, terminate)
    keep_private()
    try:
        given = None if arguments is None else list(arguments)
        code = app(given, prog_name=_NAME, standalone_mode=False)
    except InputError as error:
        _fail(str(error), 2)
    except FlowerVflError as error:
        _fail(str(error), 1)
    except PermissionError as error:
        _fail(f"{error.filename or 'a file'} may not be used by this user: {error.strerror}", 2)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - Python flushes it at the end, which would fail again
        _fail(f"{error.filename or 'the output'} cannot be written: {error.strerror}", 1)
    except MemoryError:
        _fail("out of memory; smaller training.batch_size, training.eval_batch_size or attack.names need less", 1)
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    except Exception as error:
        import click

        if isinstance(error, click.ClickException):
            error.show()
            sys.exit(error.exit_code)
        raise
    if code == _INTERRUPTED:  # typer returns the same code for a KeyboardInterrupt
        words, code = ("terminated", 128 + signals[0]) if signals else ("interrupted", code)
        _fail(words, code)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> None:
    typer.echo(f"flower-vfl: {message}", err=True)
    sys.exit(code)
