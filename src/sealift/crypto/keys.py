"""Secret keys that do not print, pickle, copy or survive a fork, and what is derived.

Guarantees: ``repr`` is redacted; pickling and copying raise; ``wipe`` overwrites the
bytes that this object owns; in a forked child every key is wiped (rule C8: a sending
key in two processes is a nonce used twice).
Not promised: Python and the libraries below may have made copies of the bytes that
nobody can overwrite.

Derivation is HKDF-SHA-256 (RFC 5869), and ``Label`` the one table of every label in the
product: two derivations can only collide if two of its rows were equal, so a new purpose
is a new row. Salt is empty: every input key is uniform (a fresh key, or a shared secret
together with a transcript hash in ``context``). It is two formulas over the standard
library's HMAC: for keys of 32 bytes the objects that the library below makes for it take
five times as long as the hashes.
"""

from __future__ import annotations

import hmac
import os
import secrets
import weakref
from enum import StrEnum
from typing import Final, NoReturn

from sealift.errors import UsageError

KEY_BYTES: Final = 32


class _RevealToken:
    """Pass ``TOKEN`` to read key bytes, so that every place that does can be found."""


TOKEN: Final = _RevealToken()
_LIVE: weakref.WeakSet[SecretKey] = weakref.WeakSet()


class SecretKey:
    """Key material of a fixed length.

    Args:
        material: The bytes; they are copied into memory that ``wipe`` overwrites.
    """

    __slots__ = ("__weakref__", "_material", "_usable")

    def __init__(self, material: bytes | bytearray | memoryview) -> None:
        if len(material) == 0:
            raise UsageError("a key cannot be empty")
        self._material = bytearray(material)
        self._usable = True
        _LIVE.add(self)

    @classmethod
    def generate(cls, length: int = KEY_BYTES) -> SecretKey:
        """A fresh key of ``length`` bytes from the system's generator."""
        return cls(secrets.token_bytes(length))

    @classmethod
    def from_bytes(cls, material: bytes | bytearray | memoryview) -> SecretKey:
        """A key from bytes that the caller already holds."""
        return cls(material)

    def twin(self) -> SecretKey:
        """The same key once more, which lives and is wiped by itself."""
        return SecretKey(self.reveal(TOKEN))

    def reveal(self, token: _RevealToken) -> bytes:
        """The bytes.

        Raises:
            UsageError: without ``TOKEN``, after ``wipe``, or in a forked child.
        """
        if token is not TOKEN:
            raise UsageError("key bytes can be read only with keys.TOKEN")
        # Copied before the check: ``wipe`` in another thread forbids before it
        # overwrites, so zeroes are never taken for a key.
        material = bytes(self._material)
        if not self._usable:
            raise UsageError("this key was wiped", fix="Derive or receive a new one")
        return material

    def wipe(self) -> None:
        """Overwrite the bytes; the key cannot be used again."""
        self._usable = False
        self._material[:] = bytes(len(self._material))

    def __len__(self) -> int:
        return len(self._material)

    def __repr__(self) -> str:
        return f"<SecretKey {8 * len(self._material)} bits>"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __reduce__(self) -> NoReturn:
        raise UsageError("keys are not pickled or copied")

    __copy__ = __reduce__

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise UsageError("keys are not pickled or copied")


def _poison_after_fork() -> None:
    for key in list(_LIVE):
        key.wipe()


os.register_at_fork(after_in_child=_poison_after_fork)


_SHA256_BYTES: Final = 32


class Label(StrEnum):
    """What a derived key or a signature is for."""

    # sealed streams (spec/record.md)
    KEY_COMMITMENT = "sealift v1 stream key commitment"
    STREAM = "sealift v1 stream secret"
    SEGMENT = "sealift v1 stream segment"
    TRAILER = "sealift v1 stream trailer"
    # data at rest (spec/record.md, rules C5 and C9)
    CONTENT_COMMITMENT = "sealift v1 content commitment"
    RESOURCE_KEY = "sealift v1 resource key commitment"
    HELDOUT_SPLIT = "sealift v1 held-out split"
    # sessions (spec/handshake.md)
    EVIDENCE = "sealift evidence"
    DEVICE_EVIDENCE = "sealift v1 device evidence"
    COMPOSITE_EVIDENCE = "sealift v1 composite evidence"
    REFERENCE_SET = "sealift v1 reference values"
    COLLATERAL = "sealift v1 collateral"
    ENROLMENT = "sealift v1 attestation key enrolment"
    TRANSCRIPT_PARAMS = "sealift v1 session transcript 1"
    TRANSCRIPT_PROOFS = "sealift v1 session transcript 2"
    IDENTITY_PROOF = "sealift v1 identity proof"
    INSTANCE_PROOF = "sealift v1 instance proof"
    RELAY_NAME = "sealift v1 relay name"
    SESSION_MASTER = "sealift v1 session master"
    SESSION_SEND_INITIATOR = "sealift v1 session initiator to responder"
    SESSION_SEND_RESPONDER = "sealift v1 session responder to initiator"
    SESSION_FINISHED_INITIATOR = "sealift v1 session finished initiator"
    SESSION_FINISHED_RESPONDER = "sealift v1 session finished responder"
    SESSION_EXPORT = "sealift v1 session export"
    PIPE = "sealift v1 pipe"
    # groups (spec/collective.md)
    GROUP_VIEW = "sealift v1 group view"
    GROUP_CHOICES = "sealift v1 group choices"
    PAIR_MASKS = "sealift v1 masks of a pair"
    SUM_MASK = "sealift v1 mask of one sum"
    # meetings (spec/meeting.md)
    MEETING = "sealift v1 meeting"
    MEETING_GUEST = "sealift v1 meeting proof of a guest"
    MEETING_HOST = "sealift v1 meeting proof of the host"
    MEETING_CARD = "sealift v1 meeting card"
    MEETING_TERMS = "sealift v1 meeting terms"
    MEETING_WORDS = "sealift v1 meeting words"
    # visits (spec/visit.md)
    VISIT_FRAME = "sealift v1 visit frame"
    DIRECT_PATH = "sealift v1 direct path"
    # links (spec/link.md)
    LINK = "sealift v1 link"
    # release (spec/release.md)
    AGREEMENT = "sealift v1 agreement"
    STATEMENT = "sealift v1 agreement statement"
    RELEASE = "sealift v1 key release"
    CHECKPOINT_SHARE = "sealift v1 checkpoint share"
    TREE_HEAD = "sealift v1 audit tree head"
    LEASE = "sealift v1 lease"
    RECEIPT = "sealift v1 receipt"
    DEVELOPMENT_EVIDENCE = "sealift v1 development evidence"
    VAULT = "sealift v1 vault"
    # identity files
    IDENTITY_FILE = "sealift v1 identity file"
    IDENTITY_BACKUP = "sealift v1 identity backup"
    # outsourced products (spec/shares.md)
    MASK_SEED = "sealift v1 mask seed"
    MASK_STREAM = "sealift v1 mask stream"
    ROUNDING_NOISE = "sealift v1 rounding noise"
    SHARE_ANSWERS = "sealift v1 share answers"
    # results
    OUTPUT = "sealift v1 output"
    OUTPUT_SHARE = "sealift v1 output share"
    OUTPUT_COMMITMENT = "sealift v1 output share commitment"
    OUTPUT_APPROVAL = "sealift v1 output approval"
    MANIFEST = "sealift v1 run manifest"
    RUN_ACCOUNT = "sealift v1 run account"


def derive_bytes(
    key: SecretKey, label: Label, context: bytes = b"", *, length: int = KEY_BYTES
) -> bytes:
    """Derive ``length`` bytes that may be shown (commitments, masks, identifiers)."""
    label_bytes = label.value.encode()
    info = bytes([len(label_bytes)]) + label_bytes + context
    extracted = hmac.digest(bytes(_SHA256_BYTES), key.reveal(TOKEN), "sha256")
    return _expand(extracted, info, length)


def derive(
    key: SecretKey, label: Label, context: bytes = b"", *, length: int = KEY_BYTES
) -> SecretKey:
    """Derive a secret key of ``length`` bytes for one purpose and one context."""
    return SecretKey(derive_bytes(key, label, context, length=length))


def _expand(key: bytes, info: bytes, length: int) -> bytes:
    """HKDF-Expand (RFC 5869 section 2.3)."""
    output = block = b""
    for counter in range(1, -(-length // _SHA256_BYTES) + 1):
        block = hmac.digest(key, block + info + bytes([counter]), "sha256")
        output += block
    return output[:length]
