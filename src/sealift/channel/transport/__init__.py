"""Connections that carry whole frames: TCP, memory files, Unix sockets."""
