"""Vertical federated learning for Flower in which label privacy is measured."""
