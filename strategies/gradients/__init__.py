"""Defenses that change gradients before they leave the label party."""
