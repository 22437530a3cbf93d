"""Attested sessions: handshake, sealed messages, and the relay that carries them."""
