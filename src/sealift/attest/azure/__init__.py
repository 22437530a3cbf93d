"""Azure's confidential guests: format, attester and verifier of their evidence."""
