"""Visits beside shipping, behind capped links, and what loading ahead hides."""
