"""Defenses on labels, before training sees them."""
