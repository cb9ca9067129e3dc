"""Attacks on the gradients of all epochs, and persistent noise against them: the study behind `beyond.md`."""
