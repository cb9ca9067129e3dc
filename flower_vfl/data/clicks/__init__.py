"""Logs of clicks, tens of millions of lines of text, prepared in pieces: Criteo and Avazu.

The text is read once, in blocks that end with a line (`blocks`). Worker threads convert a block to a table of numbers
(`fields`, `parse`), which is stored as a file (`work`). From these files the vocabularies and scales of the training
rows are fitted (`fit`), then the arrays of the prepared folder are written (`encode`). Finished steps survive a kill.
"""
