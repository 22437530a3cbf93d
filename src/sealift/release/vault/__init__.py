"""The vault: keys and shares at rest, and what a broker must never forget."""
