"""Seal a table at home, and put its files in place together or not at all."""
