"""A machine with its devices: format, attester and verifier of their evidence."""
