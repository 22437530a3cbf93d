"""Ed25519 signatures (RFC 8032) over a label and a message.

Every signature names its purpose: what is signed is the label, its length first, then
the message, so a signature made for one purpose never verifies for another. DSSE's own
encoding, for documents that other tools read, names the purpose as a media type; its first
byte is that of a label's length which no label has. Public keys of small order, under
which one signature fits many messages, verify nothing.
Source: RFC 8032; github.com/secure-systems-lab/dsse, protocol.md, version 1.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Final, Generic, NamedTuple, Protocol, TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from sealift.codec import encode
from sealift.crypto.keys import TOKEN, Label, SecretKey
from sealift.errors import AuthenticationError, MalformedError
from sealift.ids import Buffer

SIGNATURE_BYTES = 64
_MANY_KEYS: Final = 256  # public ones that are remembered, with what was made of them
_LONGEST_TEXT = 4096
_PREFIX = "ed25519:"

# The y coordinates of the eight points whose order divides 8, and the two encodings
# beyond the prime of those among them (Chalkias et al., "Taming the many EdDSAs").
_PRIME = 2**255 - 19
_Y_OF_ORDER_8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_SMALL_ORDER = frozenset(
    {0, 1, _PRIME - 1, _PRIME, _PRIME + 1, _Y_OF_ORDER_8, _PRIME - _Y_OF_ORDER_8}
)


@dataclass(frozen=True, slots=True, order=True)
class PublicKey:
    """An Ed25519 public key; its text form is ``ed25519:<base64url>``."""

    raw: bytes

    def __post_init__(self) -> None:
        if len(self.raw) != 32:
            raise MalformedError("an Ed25519 public key must have 32 bytes")

    @classmethod
    def from_text(cls, text: str) -> PublicKey:
        """Parse the text form.

        Raises:
            MalformedError: for any other text.
        """
        return cls(decode_key_text(text, _PREFIX))

    def to_text(self) -> str:
        """``ed25519:<base64url without padding>``."""
        return encode_key_text(self.raw, _PREFIX)

    def __str__(self) -> str:
        return self.to_text()

    def verify(self, label: Label, message: Buffer, signature: Buffer) -> None:
        """Check a signature made by ``Signer.sign`` with the same label.

        Raises:
            AuthenticationError: if it does not verify.
        """
        self._verify(_framed(label, message), signature)

    def verify_dsse(self, media_type: str, payload: bytes, signature: Buffer) -> None:
        """Check a signature made by ``SigningKey.sign_dsse`` with the same type.

        Raises:
            AuthenticationError: if it does not verify.
        """
        self._verify(_pre_authenticated(media_type, payload), signature)

    def _verify(self, framed: bytes, signature: Buffer) -> None:
        try:
            _load(self.raw).verify(bytes(signature), framed)
        except (InvalidSignature, ValueError):
            raise AuthenticationError from None


class Signer(Protocol):
    """Whoever can sign: an identity file, an instance key, later a hardware key."""

    @property
    def public_key(self) -> PublicKey:
        """The key that verifies this signer's signatures."""
        ...

    def sign(self, label: Label, message: Buffer) -> bytes:
        """A 64-byte signature of ``message`` for the purpose ``label``."""
        ...


class SigningKey:
    """An Ed25519 private key in memory."""

    __slots__ = ("_private", "_public")

    def __init__(self, seed: SecretKey) -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(seed.reveal(TOKEN))
        self._public = PublicKey(self._private.public_key().public_bytes_raw())

    @classmethod
    def generate(cls) -> SigningKey:
        """A fresh key."""
        return cls(SecretKey.generate())

    @property
    def public_key(self) -> PublicKey:
        """The key that verifies."""
        return self._public

    def sign(self, label: Label, message: Buffer) -> bytes:
        """Sign ``message`` for the purpose ``label``."""
        return self._private.sign(_framed(label, message))

    def sign_dsse(self, media_type: str, payload: bytes) -> bytes:
        """Sign a payload as a DSSE envelope carries it; its media type is the purpose."""
        return self._private.sign(_pre_authenticated(media_type, payload))

    def __repr__(self) -> str:
        return f"<SigningKey {self._public}>"

    def __reduce__(self) -> str:
        raise TypeError("keys are not pickled or copied")


class Form(NamedTuple):
    """How a kind of document is signed: for which purpose, and its name on the wire."""

    label: Label
    field: str


class Document(Protocol):
    """A record of the codec that is signed."""

    FORM: ClassVar[Form]


D = TypeVar("D", bound=Document)


@dataclass(
    frozen=True
)  # no slots: what `SignedDocument[Lease]` makes is to note its argument
class SignedDocument(Generic[D]):
    """A document and its signature, not verified yet: one envelope for all that one signs.

    On the wire the document stands under its form's name, and ``signature`` beside it. What
    is not such a pair has a form of its own: an agreement's line, which many sign; a set of
    references and an enrolment, which say who signed; a manifest, kept as signed bytes.
    """

    body: D
    signature: bytes

    def verify(self, key: PublicKey) -> D:
        """The document, if this key signed it; raises AuthenticationError."""
        key.verify(self.body.FORM.label, encode(self.body), self.signature)
        return self.body

    def to_fields(self) -> dict[str, object]:
        """As the codec writes it."""
        return {self.body.FORM.field: self.body, "signature": self.signature}

    @staticmethod
    def fields_for(document: type[Document]) -> dict[str, Any]:
        """As the codec reads it: types by name, in the constructor's order."""
        return {document.FORM.field: document, "signature": bytes}


def sign_document(document: D, signer: Signer) -> SignedDocument[D]:
    """The document, signed for its form's purpose."""
    signature = signer.sign(document.FORM.label, encode(document))
    return SignedDocument(document, signature)


@lru_cache(_MANY_KEYS)
def _load(raw: bytes) -> Ed25519PublicKey:
    """A key that verifies something; raises AuthenticationError or ValueError."""
    if _y_coordinate(raw) in _SMALL_ORDER:
        raise AuthenticationError
    return Ed25519PublicKey.from_public_bytes(raw)


@lru_cache(_MANY_KEYS)
def encode_key_text(raw: bytes, prefix: str) -> str:
    """``prefix`` and base64url without padding."""
    return prefix + base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def decode_key_text(text: str, prefix: str) -> bytes:
    """The bytes behind a key's text form; only the canonical form is accepted.

    Raises:
        MalformedError: for any other text.
    """
    if len(text) > _LONGEST_TEXT:  # before anything of it is remembered
        raise MalformedError(f"not a key of the form {prefix}<base64url>")
    return _decode_key_text(text, prefix)


@lru_cache(_MANY_KEYS)
def _decode_key_text(text: str, prefix: str) -> bytes:
    body = text.removeprefix(prefix)
    try:
        raw = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
    except ValueError:
        raw = b""
    if not raw or encode_key_text(raw, prefix) != text:
        raise MalformedError(f"not a key of the form {prefix}<base64url>")
    return raw


def _y_coordinate(raw: bytes) -> int:
    return int.from_bytes(raw, "little") & ((1 << 255) - 1)


def _framed(label: Label, message: Buffer) -> bytes:
    name = label.value.encode()
    return bytes([len(name)]) + name + bytes(message)


def _pre_authenticated(media_type: str, payload: bytes) -> bytes:
    """DSSE's PAE: version, type and payload, the last two behind their lengths."""
    kind = media_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)
