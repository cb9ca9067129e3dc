"""Thirty epochs: does noise that stays overtake more noise that is drawn anew? The study behind `longer.md`."""
