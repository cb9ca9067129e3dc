"""Utility of training without gradients, with pre-training and without. The study behind `no-gradients.md`."""
