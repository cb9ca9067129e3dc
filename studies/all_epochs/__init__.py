"""The bound on the releases of all epochs, and the strongest attacks on them: the study behind `all_epochs.md`."""
