"""Tests of the papers' claims on leakage through cut gradients: the study behind `gradients.md`."""
