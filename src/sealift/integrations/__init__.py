"""Sealift inside other libraries: one optional library a file."""
