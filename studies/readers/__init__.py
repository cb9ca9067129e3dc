"""The strongest attacker on a trained model's embeddings, behind each defense: the study behind `readers.md`."""
