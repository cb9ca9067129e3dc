"""Attacks on the gradients of all epochs: they have a history for each row."""
