"""The audit log: entries, signed heads, proofs, and what outsiders keep of it."""
