"""Encoding of columns, labels, texts and IDs as numbers."""
