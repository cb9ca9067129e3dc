"""Defenses on embeddings: terms of the loss."""
