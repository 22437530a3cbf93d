"""HKDF-SHA-256 (RFC 5869), and the one table of every label in the product.

Two derivations can only collide if two rows of ``Label`` were equal, so a new purpose
is a new row here. Salt is empty: every input key is uniform (a fresh key, or a shared
secret together with a transcript hash in ``context``).
It is two formulas over the standard library's HMAC: for keys of 32 bytes the objects
that the library below makes for it take five times as long as the hashes.
"""

from __future__ import annotations

import hmac
from enum import StrEnum
from typing import Final

from sealift.crypto.hash import HASH_BYTES
from sealift.crypto.keys import KEY_BYTES, TOKEN, SecretKey

_NO_SALT: Final = bytes(HASH_BYTES)


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
    # results
    OUTPUT = "sealift v1 output"
    OUTPUT_SHARE = "sealift v1 output share"
    OUTPUT_COMMITMENT = "sealift v1 output share commitment"
    OUTPUT_APPROVAL = "sealift v1 output approval"
    MANIFEST = "sealift v1 run manifest"


def derive_bytes(
    key: SecretKey, label: Label, context: bytes = b"", *, length: int = KEY_BYTES
) -> bytes:
    """Derive ``length`` bytes that may be shown (commitments, masks, identifiers)."""
    label_bytes = label.value.encode()
    info = bytes([len(label_bytes)]) + label_bytes + context
    extracted = hmac.digest(_NO_SALT, key.reveal(TOKEN), "sha256")
    return _expand(extracted, info, length)


def derive(
    key: SecretKey, label: Label, context: bytes = b"", *, length: int = KEY_BYTES
) -> SecretKey:
    """Derive a secret key of ``length`` bytes for one purpose and one context."""
    return SecretKey(derive_bytes(key, label, context, length=length))


def _expand(key: bytes, info: bytes, length: int) -> bytes:
    """HKDF-Expand (RFC 5869 section 2.3)."""
    output = block = b""
    for counter in range(1, -(-length // HASH_BYTES) + 1):
        block = hmac.digest(key, block + info + bytes([counter]), "sha256")
        output += block
    return output[:length]
