"""Attacks on the gradients of all epochs, the history of each row."""
