"""What crosses the cut: frames, their records and bytes, the schedule, and the transcript of what a party saw."""
