"""Logs of clicks, tens of millions of lines of text, prepared in pieces: Criteo and Avazu.

The text is read once, in blocks that end with a line (`blocks`). Worker threads make a table of numbers of each block
(`fields`, `parse`), which is kept as a file (`work`). From these files come the vocabularies and scales of the training
rows (`fit`), and then the arrays of the prepared folder (`encode`). What was written is not done again after a kill.
"""
