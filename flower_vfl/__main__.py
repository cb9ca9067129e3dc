"""`python -m flower_vfl` is the command line."""

from flower_vfl.cli import main

main()
