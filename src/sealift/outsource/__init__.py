"""Products on servers that nobody trusts: spec/shares.md."""
