"""Defenses that change labels before training."""
