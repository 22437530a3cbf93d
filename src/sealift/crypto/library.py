"""Which library computes what this room offers."""

from __future__ import annotations

import cryptography
from cryptography.hazmat.backends.openssl import backend


def library_version() -> str:
    """For people: `cryptography 50.0.2 (OpenSSL 4.0.3 ...)`."""
    return f"cryptography {cryptography.__version__} ({library_below()})"


def library_below() -> str:
    """The OpenSSL that it was built with, name and version alone."""
    return " ".join(backend.openssl_version_text().split()[:2])
