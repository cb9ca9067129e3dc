"""Do the papers' claims on labels read from embeddings hold on data within reach? The study behind `embeddings.md`."""
