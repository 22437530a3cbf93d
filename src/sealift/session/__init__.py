"""Two attested ends with fresh keys: handshake, sealed messages, relay, rekey."""
