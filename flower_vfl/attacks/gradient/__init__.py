"""Attacks on the gradients of one batch."""
