"""Auditing: the comparison of attacks and readers with true labels, and the verdict of a run on its leakage."""
