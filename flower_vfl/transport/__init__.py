"""How frames cross the cut: in one process, over a gRPC stream, or inside Flower's own messages."""
