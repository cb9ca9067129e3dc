"""Private ID alignment as a Flower run: the label party asks in rounds, the feature parties answer.

What is computed is in `flower_vfl.alignment`; here are the messages, the files and the checks of what others send.
"""
