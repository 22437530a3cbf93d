"""Attestation (RFC 9334): who is at the other end, and what proves it."""
