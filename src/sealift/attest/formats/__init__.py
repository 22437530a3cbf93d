"""Foreign formats of evidence, parsed: bytes in, frozen records out."""
