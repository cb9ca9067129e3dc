"""What does a party read that remembers, and what does persistent noise do about it? The study behind `beyond.md`."""
