"""The label party, feature parties and attackers: state machines over the protocol, with no input or output of their own."""
