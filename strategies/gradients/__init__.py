"""Defenses on gradients, before they leave the label party."""
