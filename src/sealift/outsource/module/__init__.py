"""Outsourcing in a user's own process: its steps, and the model as its user sees it."""
