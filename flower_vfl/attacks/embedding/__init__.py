"""Attacks on the embeddings of the trained model."""
