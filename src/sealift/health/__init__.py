"""Metrics and health of a role, served by a process that has no keys."""
