"""Primitives, wrapped so that misuse raises: the only room that imports `cryptography`."""
