"""Tests of the papers' claims on label leakage from embeddings: the study behind `embeddings.md`."""
