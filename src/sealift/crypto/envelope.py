"""A DSSE envelope around one document, in the form that in-toto's tools read as well.

Source: github.com/secure-systems-lab/dsse, envelope.md, version 1.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any

from sealift.codec import encode, parse
from sealift.crypto.sign import PublicKey, SigningKey
from sealift.errors import AuthenticationError, MalformedError


@dataclass(frozen=True, slots=True)
class Envelope:
    """A document and one signature, not verified yet.

    Attributes:
        media_type: Of the payload.
        payload: The document's bytes.
        key: Whose signature it is said to be; whose it must be, its reader knows.
        signature: 64 bytes.
    """

    media_type: str
    payload: bytes
    key: PublicKey
    signature: bytes

    def verify(self, key: PublicKey) -> bytes:
        """The payload, if this key signed it.

        Raises:
            AuthenticationError: if it did not.
        """
        if key != self.key:
            raise AuthenticationError
        key.verify_dsse(self.media_type, self.payload, self.signature)
        return self.payload


def sign_envelope(media_type: str, payload: bytes, key: SigningKey) -> bytes:
    """The envelope's JSON."""
    signature = key.sign_dsse(media_type, payload)
    signed = {"keyid": key.public_key.to_text(), "sig": _text(signature)}
    return encode(
        {"payload": _text(payload), "payloadType": media_type, "signatures": [signed]}
    )


def parse_envelope(raw: bytes, *, max_bytes: int) -> Envelope:
    """Read an envelope with one signature; nothing is verified.

    Raises:
        MalformedError: code ``bad-run-receipt``, with the field.
    """
    plain = parse(raw, max_bytes=max_bytes)
    outer = _fields(plain, ("payload", "payloadType", "signatures"), "")
    signatures = outer["signatures"]
    if not isinstance(signatures, list) or len(signatures) != 1:
        raise _bad("signatures")
    inner = _fields(signatures[0], ("keyid", "sig"), "signatures[0]")
    try:
        key = PublicKey.from_text(_as_text(inner["keyid"], "signatures[0].keyid"))
    except MalformedError:
        raise _bad("signatures[0].keyid") from None
    return Envelope(
        media_type=_as_text(outer["payloadType"], "payloadType"),
        payload=_bytes(outer["payload"], "payload"),
        key=key,
        signature=_bytes(inner["sig"], "signatures[0].sig"),
    )


def _fields(plain: Any, names: tuple[str, ...], field: str) -> dict[str, Any]:
    if not isinstance(plain, dict) or set(plain) != set(names):
        raise _bad(field or "envelope")
    return plain


def _as_text(plain: Any, field: str) -> str:
    if not isinstance(plain, str):
        raise _bad(field)
    return plain


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _bytes(plain: Any, field: str) -> bytes:
    """Only the one text that stands for these bytes."""
    try:
        raw = base64.b64decode(_as_text(plain, field), validate=True)
    except (binascii.Error, ValueError):
        raise _bad(field) from None
    if _text(raw) != plain:
        raise _bad(field)
    return raw


def _bad(field: str) -> MalformedError:
    return MalformedError("no DSSE envelope", field=field, code="bad-run-receipt")
