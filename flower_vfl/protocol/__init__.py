"""The protocol of the cut: frames, their records and bytes, the schedule, and the transcript of a party."""
