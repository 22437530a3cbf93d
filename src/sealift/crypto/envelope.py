"""A DSSE envelope around one document, in the form that in-toto's tools read as well.

Source: github.com/secure-systems-lab/dsse, envelope.md, version 1.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Self

from sealift.codec import encode
from sealift.crypto.sign import PublicKey, SigningKey
from sealift.errors import AuthenticationError, MalformedError


@dataclass(frozen=True, slots=True)
class Base64:
    """Bytes as DSSE writes them (RFC 4648 section 4, padded)."""

    raw: bytes

    def to_text(self) -> str:
        """The one text that stands for these bytes."""
        return base64.b64encode(self.raw).decode()

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Read it; raises ``MalformedError`` for any other text."""
        try:
            found = cls(base64.b64decode(text, validate=True))
        except ValueError:
            raise MalformedError("the text is not base64") from None
        if found.to_text() != text:
            raise MalformedError("the text is not the one base64 form of its bytes")
        return found


@dataclass(frozen=True, slots=True)
class Signature:
    """Whose it is said to be, and 64 bytes."""

    keyid: PublicKey
    sig: Base64


@dataclass(frozen=True, slots=True)
class Envelope:
    """A document and one signature, not verified yet; fields have DSSE's names."""

    payload: Base64
    payloadType: str  # noqa: N815
    signatures: tuple[Signature]

    def verify(self, key: PublicKey) -> bytes:
        """The payload, if this key signed it.

        Raises:
            AuthenticationError: if it did not.
        """
        (signature,) = self.signatures
        if key != signature.keyid:
            raise AuthenticationError
        key.verify_dsse(self.payloadType, self.payload.raw, signature.sig.raw)
        return self.payload.raw


def sign_envelope(media_type: str, payload: bytes, key: SigningKey) -> bytes:
    """The envelope's JSON."""
    signature = Base64(key.sign_dsse(media_type, payload))
    signed = Signature(key.public_key, signature)
    return encode(Envelope(Base64(payload), media_type, (signed,)))
