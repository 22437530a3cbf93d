"""Intel TDX: format, attester, verifier and reference values of its evidence."""
