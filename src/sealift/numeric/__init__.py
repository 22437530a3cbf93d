"""Exact arithmetic on arrays: no torch, no sockets."""
