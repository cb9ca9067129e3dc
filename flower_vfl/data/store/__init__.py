"""Prepared folders: written once, memory-mapped, gathered a batch at a time."""
