"""Attacks on the gradients of several trainings of the same people: the study behind `trainings.md`."""
