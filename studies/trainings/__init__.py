"""What does a party read that remembers over several trainings of the same people? The study behind `trainings.md`."""
