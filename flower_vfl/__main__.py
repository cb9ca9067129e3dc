"""`flower-vfl` and `python -m flower_vfl`: the command line."""

import sys


def main() -> None:
    """Load the command line and run it; an interruption ends it in one line while it loads, too."""
    try:
        from flower_vfl import cli
    except KeyboardInterrupt:
        sys.stderr.write("flower-vfl: interrupted\n")
        sys.exit(130)  # as shells do: 128 and the number of the signal
    cli.main()


if __name__ == "__main__":
    main()
