"""The label party's training loop, from the handshake to the outcome."""
