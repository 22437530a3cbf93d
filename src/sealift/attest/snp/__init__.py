"""AMD SEV-SNP: format, attester, verifier and reference values of its evidence."""
