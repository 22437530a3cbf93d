"""Software keys that prove nothing: format, attester and verifier."""
