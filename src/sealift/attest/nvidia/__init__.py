"""NVIDIA's GPUs and switches: format, attester, verifier and reference values."""
