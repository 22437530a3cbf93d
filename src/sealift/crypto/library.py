"""Which library computes what this room offers, and where its exceptions end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import cryptography
from cryptography.hazmat.backends.openssl import backend

from sealift.errors import MalformedError, SealiftError


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Around whatever the library makes of a stranger's bytes (rule N9).

    It raises many types of its own, which no list of them would keep up with.

    Raises:
        MalformedError: instead of anything that is not ours.
    """
    try:
        yield
    except SealiftError:
        raise
    except Exception:
        raise MalformedError(f"not {what}") from None


def library_version() -> str:
    """For people: `cryptography 50.0.2 (OpenSSL 4.0.3 ...)`."""
    return f"cryptography {cryptography.__version__} ({library_below()})"


def library_below() -> str:
    """The OpenSSL that it was built with, name and version alone."""
    return " ".join(backend.openssl_version_text().split()[:2])
