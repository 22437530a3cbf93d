"""Small names that mean one thing each: digests, party names, handles, roles.

They carry no behaviour beyond parsing and printing, so that every room can share
them without knowing another room.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from sealift.errors import MalformedError

# What AEADs and hashes read and write; collections.abc.Buffer needs Python 3.12.
Buffer = bytes | bytearray | memoryview

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
DIGEST_BYTES = 32
RANDOM_ID_BYTES = 16
MAX_RANKS = 16  # of a group (spec/collective.md)


class Role(StrEnum):
    """What a process does in a job."""

    ORCHESTRATOR = "orchestrator"
    ACCELERATOR = "accelerator"
    HOLDER = "holder"
    BROKER = "broker"
    CLIENT = "client"
    SHARE_SERVER = "share-server"
    MEETING = "meeting"  # nothing is ever released to it


def cut_names(raw: bytes, length: int) -> list[bytes]:
    """Names of one length that lie end to end.

    Raises:
        MalformedError: if they do not fill the bytes.
    """
    if len(raw) % length:
        raise MalformedError(
            f"{len(raw):,} bytes cannot be split into names of {length} bytes"
        )
    return [raw[at : at + length] for at in range(0, len(raw), length)]


def check_name(text: str, *, what: str = "name") -> str:
    """Return ``text`` if it is 1-63 of a-z, 0-9 and inner hyphens.

    Raises:
        MalformedError: for anything else.
    """
    if not _NAME.fullmatch(text):
        raise MalformedError(
            f"{what} {text[:80]!r} is not a valid name", code="bad-name"
        )
    return text


@dataclass(frozen=True, slots=True, order=True)
class Digest:
    """A SHA-256 sized digest; its text form is ``sha256:<64 hex>``."""

    raw: bytes

    def __post_init__(self) -> None:
        if len(self.raw) != DIGEST_BYTES:
            raise MalformedError(f"a digest has {DIGEST_BYTES} bytes")

    @classmethod
    def of(cls, content: bytes) -> Digest:
        """SHA-256 of ``content``."""
        return cls(hashlib.sha256(content).digest())

    @classmethod
    def from_text(cls, text: str) -> Digest:
        """Parse ``sha256:<64 lower-case hex>``.

        Raises:
            MalformedError: for any other text.
        """
        if not re.fullmatch(r"sha256:[0-9a-f]{64}", text):
            raise MalformedError("not a digest", fix="Write it as sha256:<64 hex>")
        return cls(bytes.fromhex(text[7:]))

    def to_text(self) -> str:
        """``sha256:<64 hex>``."""
        return f"sha256:{self.raw.hex()}"

    @property
    def short(self) -> str:
        """The first 12 hex digits, for people."""
        return self.raw.hex()[:12]

    def __str__(self) -> str:
        return self.to_text()


@dataclass(frozen=True, slots=True, order=True)
class _RandomId:
    """128 random bits with a hex text form."""

    raw: bytes

    def __post_init__(self) -> None:
        if len(self.raw) != RANDOM_ID_BYTES:
            raise MalformedError(f"a {type(self).__name__} has {RANDOM_ID_BYTES} bytes")

    @classmethod
    def from_text(cls, text: str) -> Self:
        if not re.fullmatch(r"[0-9a-f]{32}", text):
            raise MalformedError(f"not a {cls.__name__}", fix="Write 32 hex digits")
        return cls(bytes.fromhex(text))

    def to_text(self) -> str:
        return self.raw.hex()

    def __str__(self) -> str:
        return self.raw.hex()


class Handle(_RandomId):
    """Names a buffer of the accelerator; never an address."""

    @classmethod
    def generate(cls) -> Handle:
        """A fresh handle."""
        return cls(secrets.token_bytes(16))


class VisitId(_RandomId):
    """Names one stay of the accelerator with one holder."""

    @classmethod
    def generate(cls) -> VisitId:
        """A fresh visit id."""
        return cls(secrets.token_bytes(16))
