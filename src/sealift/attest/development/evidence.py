"""Format of development evidence: software keys, which prove nothing about hardware.

The body is canonical JSON: a statement (bound value, claims, attester key) and the
attester key's signature over the statement's canonical bytes (spec/evidence.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sealift import codec
from sealift.crypto.sign import PublicKey
from sealift.ids import Digest

KIND: Final = "development"
MEDIA_TYPE: Final = "application/vnd.sealift.development-evidence+json"
RESULT_MEDIA_TYPE: Final = "application/vnd.sealift.development-result+json"
MAX_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class DevelopmentClaims:
    """What the software says about itself."""

    role: str
    code_bundle: Digest | None
    software: str


@dataclass(frozen=True, slots=True)
class Statement:
    """What the attester key signs."""

    bound: bytes
    claims: DevelopmentClaims
    attester: PublicKey


@dataclass(frozen=True, slots=True)
class DevelopmentBody:
    """The whole body."""

    statement: Statement
    signature: bytes


def parse_body(body: bytes) -> DevelopmentBody:
    """Parse; trusts nothing.

    Raises:
        MalformedError: if it is not this format.
    """
    return codec.decode(DevelopmentBody, body, max_bytes=MAX_BYTES)
