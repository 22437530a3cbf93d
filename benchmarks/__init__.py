"""Measurements: one file per table, every number with its machine and its mode."""
