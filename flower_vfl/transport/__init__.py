"""Transports of frames across the cut: in one process, over a gRPC stream, or inside Flower's own messages."""
