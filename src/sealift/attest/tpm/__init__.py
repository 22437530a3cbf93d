"""TPM 2.0: format, attester, verifier and reference values of its evidence."""
