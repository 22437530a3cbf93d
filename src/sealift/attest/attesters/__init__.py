"""Attesters by kind: they ask devices, so no verifier imports them."""
