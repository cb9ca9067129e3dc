"""A vertical federation with a model and data of its own."""
