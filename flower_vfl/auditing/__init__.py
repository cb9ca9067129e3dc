"""Auditing: where attacks and readers meet true labels, and what a run may say about its leakage."""
