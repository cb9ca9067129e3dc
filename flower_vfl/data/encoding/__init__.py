"""Columns, labels, texts and IDs become numbers."""
