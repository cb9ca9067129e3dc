"""Private ID alignment as a Flower run: the label party asks in rounds, the feature parties answer.

The computations are in `flower_vfl.alignment`; here are the messages, the files and the checks of received values.
"""
