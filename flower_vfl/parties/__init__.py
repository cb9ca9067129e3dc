"""The label party, feature parties and attackers: state machines over the protocol, with no I/O of their own."""
