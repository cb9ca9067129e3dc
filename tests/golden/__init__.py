"""Golden results: the numbers of small runs, compared bit for bit between two versions on one machine.

``python -m tests.golden against main`` records the runs of `main` and of this tree and lists every value that differs.
See README.md in this folder.
"""
