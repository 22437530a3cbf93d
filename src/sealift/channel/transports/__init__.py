"""Connections that carry whole frames: TCP, memory files, named memory, spools."""
