"""Sealed files of a dataset: one, all of them, and their rows by index."""
