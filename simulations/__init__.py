"""Presets, and the two thin apps that `flwr run .` starts; imported as `flower_vfl.simulations`."""
