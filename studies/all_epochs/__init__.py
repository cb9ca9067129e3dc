"""What is promised of all epochs, and what the strongest readers reach: the study behind `all_epochs.md`."""
