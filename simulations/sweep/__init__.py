"""Sweeps: many runs from one file, on Ray Tune, with one table and one report at the end."""
