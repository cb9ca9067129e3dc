"""Training of many runs as one: runs of a sweep that differ only in seeds and in defenses of gradients."""
