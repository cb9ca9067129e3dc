"""Presets, and the two thin apps that `flwr run .` starts."""
