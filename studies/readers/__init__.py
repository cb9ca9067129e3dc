"""Which attacker reads most from a trained model's embeddings, behind each defense? The study behind `readers.md`."""
