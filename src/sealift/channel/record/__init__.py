"""Sealed streams: records, files, commitments, and who computes their AEAD."""
