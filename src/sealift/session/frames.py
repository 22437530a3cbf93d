"""What a session puts into a transport's frames: one kind byte, then the payload.

The kind byte is not authenticated. Whoever changes it makes a frame that does not open,
does not parse as a handshake message, or is taken for a raw frame, which authenticates
itself (spec/handshake.md section 6).
"""

from __future__ import annotations

import re
from enum import IntEnum

from sealift.errors import MalformedError, PeerError, SealiftError
from sealift.ids import Buffer


class FrameKind(IntEnum):
    """First byte of every frame of a session."""

    HANDSHAKE = 1
    ABORT = 2
    HEADER = 3
    RECORD = 4
    RAW = 5


class MessageType(IntEnum):
    """First byte of every plaintext, under the seal."""

    APPLICATION = 0
    REKEY_HELLO = 1
    REKEY_REPLY = 2
    REKEY_ANSWER = 3
    REKEY_DONE = 4
    CLOSE = 5


def pack(kind: FrameKind, payload: Buffer) -> bytes:
    """One frame."""
    return b"".join((bytes([kind]), payload))


def unpack(frame: bytes) -> tuple[FrameKind, bytes]:
    """Kind and payload of a frame.

    Raises:
        MalformedError: if it is empty, or of an unknown kind.
    """
    try:
        return FrameKind(frame[0]), frame[1:]
    except (IndexError, ValueError):
        raise MalformedError("not a frame of a session", code="bad-frame") from None


def parse_type(plaintext: bytes) -> tuple[MessageType, bytes]:
    """Type and payload of an opened record.

    Raises:
        MalformedError: if it is empty, or of an unknown type.
    """
    try:
        return MessageType(plaintext[0]), plaintext[1:]
    except (IndexError, ValueError):
        raise MalformedError("not a message of a session", code="bad-frame") from None


def pack_abort(error: SealiftError) -> bytes:
    """The stable name of a refusal, for the other end's error line. Nothing else."""
    return pack(FrameKind.ABORT, error.code.encode())


def raise_abort(payload: bytes) -> None:
    """Report a peer's refusal. It is not authenticated, so it is only a hint.

    Raises:
        PeerError: always.
    """
    text = payload[:64].decode("ascii", "replace")
    code = text if re.fullmatch(r"[a-z0-9-]+", text) else "no reason given"
    raise PeerError(
        "the peer refused the session",
        why=code,
        fix=f"sealift explain {code} says what it means; its log has the whole line",
        code="peer-refused",
    )
