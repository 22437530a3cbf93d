"""Kinds of sources that can be sealed: one file each, and one line in ``table``."""
