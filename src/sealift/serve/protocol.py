"""What client and server say to each other inside their session (spec/serve.md).

A packet is a header, canonical JSON behind its length, and a payload of whole rows,
split over messages of a session where it is longer than one. Padding, where the client
asks for it, hides a payload's length but for its power of two. Nothing here decides. A
refusal becomes an error of the class that it is at the server.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from sealift.codec import decode, encode
from sealift.errors import (
    JobError,
    MalformedError,
    PeerError,
    RefusedError,
    SealiftError,
    visible,
)
from sealift.ids import Buffer, Digest
from sealift.release.log.entries import SignedTreeHead
from sealift.session.frames import MAX_MESSAGE_BYTES
from sealift.session.session import Session

VERSION: Final = 1
MAX_HEADER_BYTES: Final = 64 << 10
MAX_LINE_CHARACTERS: Final = 400
LEAST_PADDED_BYTES: Final = 4096
PART_S: Final = 20.0  # between two messages of a packet
_PREFIX: Final = struct.Struct(">IQQ")  # bytes of header, payload, padding
Work = Literal["predict", "generate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceRequest:
    """Client to server: rows of the model's inputs, in the payload.

    Attributes:
        id: Counts up from 1 within the session.
        rows: Rows of the payload.
        steps: Most steps wanted of a generation; 0 for the model's own most.
        pad: Whether answers are padded.
    """

    id: int
    work: Work
    rows: int
    steps: int = 0
    pad: bool = False


@dataclass(frozen=True, slots=True)
class Cancel:
    """Client to server: no more of this."""

    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerWelcome:
    """Server to client, once, before anything else.

    Attributes:
        version: Of this protocol.
        model: Name of the model's resource.
        content: Its commitment, which the client compares with the agreement.
        sandbox: What keeps the recipe in.
        software: Name and version.
        max_request_bytes: Longest payload that is taken.
        max_waiting: Questions that one client may have waiting.
        head: Of the log of the model's owner; covers the release of its key.
    """

    version: int
    model: str
    content: Digest
    sandbox: str
    software: str
    max_request_bytes: int
    max_waiting: int
    head: SignedTreeHead | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceAnswer:
    """Server to client: rows of the model's outputs or tokens, in the payload.

    Attributes:
        number: Counts the answers to one question from 0.
        rows: Rows of the payload; 0 at the end of a stream of tokens.
        final: Whether it is the last one.
    """

    id: int
    number: int
    rows: int
    final: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Server to client: there will be no (further) answer.

    Attributes:
        id: The question; 0 for all, and the end of the session.
        code: Stable name.
        line: For people; never of anybody's rows.
        retry_ms: With ``busy``: after how long to ask again.
    """

    id: int
    code: str
    line: str
    retry_ms: int = 0


Header = InferenceRequest | Cancel | ServerWelcome | InferenceAnswer | Refused
_KINDS: Final[dict[str, type[Header]]] = {
    kind.__name__: kind
    for kind in (InferenceRequest, Cancel, ServerWelcome, InferenceAnswer, Refused)
}
_CODES: Final = {name: bytes([code]) for code, name in enumerate(_KINDS)}
_NAMES: Final = {code: name for name, code in _CODES.items()}


@dataclass(frozen=True, slots=True)
class Packet:
    """A header and its payload."""

    header: Header
    payload: Buffer = b""


def send_packet(
    session: Session, header: Header, payload: Buffer = b"", *, pad: bool = False
) -> None:
    """Send one packet; nothing else may be sent meanwhile.

    Raises:
        PeerError: if the peer is gone.
    """
    for message in _messages(header, payload, pad=pad):
        session.send(message)


def send_packet_now(
    session: Session, header: Header, payload: Buffer = b"", *, pad: bool = False
) -> bool:
    """``send_packet``, if the peer need not be waited for; else False, and nothing was sent.

    A packet of several messages is never sent so. Raises like ``send_packet``.
    """
    first, *others = _messages(header, payload, pad=pad)
    return not others and session.send_now(first)


def receive_packet(
    session: Session,
    timeout_s: float | None,
    *,
    max_payload: Callable[[Header], int],
    begun: bytes | None = None,
) -> Packet:
    """The next packet.

    Args:
        session: Delivers messages, in order.
        timeout_s: Until its first message; the others follow within ``PART_S`` each.
        max_payload: How long the payload behind a header may be.
        begun: Its first message, if that was received already.

    Raises:
        MalformedError: ``bad-packet``, or ``request-too-large`` with the header's limit.
        PeerError: no message in time, or the peer is gone.
    """
    message = memoryview(session.receive(timeout_s) if begun is None else begun)
    if len(message) < _PREFIX.size:
        raise _bad("it is shorter than its prefix")
    head_bytes, payload_bytes, padding = _PREFIX.unpack_from(message)
    start = _PREFIX.size + head_bytes
    if head_bytes > MAX_HEADER_BYTES or start > len(message):
        raise _bad("it is shorter than its header")
    header = _parse(bytes(message[_PREFIX.size : start]))
    most = max_payload(header)
    if payload_bytes > most or padding > 2 * max(most, LEAST_PADDED_BYTES):
        raise too_large(payload_bytes, most)
    body = message[start:]
    if len(body) == payload_bytes:
        return Packet(header, body)
    return Packet(header, _collect(session, body, payload_bytes, padding, timeout_s))


def is_whole(message: bytes) -> bool:
    """Whether nothing has to be waited for behind the first message of a packet."""
    if len(message) < _PREFIX.size:
        return True  # and refused
    head_bytes, payload_bytes, padding = _PREFIX.unpack_from(message)
    return bool(_PREFIX.size + head_bytes + payload_bytes + padding <= len(message))


def bad_request(why: str) -> MalformedError:
    """A question that the model's form has no place for."""
    return MalformedError(
        "the request does not match the model's form", why=why, code="bad-request"
    )


def too_large(found_bytes: int, most_bytes: int) -> MalformedError:
    """A payload above the limit."""
    return MalformedError(
        f"the request has {found_bytes} bytes",
        why=f"the limit is {most_bytes} bytes",
        code="request-too-large",
    )


def _collect(
    session: Session,
    body: memoryview,
    payload_bytes: int,
    padding: int,
    timeout_s: float | None,
) -> memoryview:
    whole = bytearray()  # grows with what came: an announced length costs nobody memory
    left = payload_bytes + padding
    while True:
        if len(body) > left:
            raise _bad("it is longer than its prefix says")
        whole += body[: payload_bytes - len(whole)]
        left -= len(body)
        if not left:
            return memoryview(whole)
        part_s = PART_S if timeout_s is None else min(timeout_s, PART_S)
        body = memoryview(_receive_part(session, part_s))
        if not body:
            raise _bad("a part of it is empty")


def _receive_part(session: Session, timeout_s: float | None) -> bytes:
    """After half a packet the next message would be taken for a header."""
    try:
        return session.receive(timeout_s)
    except PeerError as error:
        if error.code != "peer-timeout":
            raise
        raise PeerError(
            "the peer stopped in the middle of a packet", code="peer-stalled"
        ) from None


def _parse(head: bytes) -> Header:
    kind = _KINDS.get(_NAMES.get(head[:1], ""))
    if kind is None:
        raise _bad("its kind is unknown")
    return decode(kind, head[1:], max_bytes=MAX_HEADER_BYTES)


def _messages(header: Header, payload: Buffer, *, pad: bool) -> Iterator[Buffer]:
    head = _CODES[type(header).__name__] + encode(header)
    padding = _padding(len(head) + len(payload)) if pad else 0
    prefix = _PREFIX.pack(len(head), len(payload), padding)
    room = MAX_MESSAGE_BYTES - len(prefix) - len(head)
    view = memoryview(payload).cast("B")
    first = view[:room]
    left = min(padding, room - len(first))
    yield b"".join((prefix, head, first, bytes(left)))
    yield from _parts(view[room:], padding - left)


def _parts(view: memoryview, padding: int) -> Iterator[Buffer]:
    for start in range(0, len(view), MAX_MESSAGE_BYTES):
        part = view[start : start + MAX_MESSAGE_BYTES]
        left = min(padding, MAX_MESSAGE_BYTES - len(part))
        padding -= left
        yield b"".join((part, bytes(left))) if left else part
    for start in range(0, padding, MAX_MESSAGE_BYTES):
        yield bytes(min(MAX_MESSAGE_BYTES, padding - start))


def _padding(length: int) -> int:
    """Up to the next power of two, 4 KiB at least."""
    padded = max(LEAST_PADDED_BYTES, 1 << (length - 1).bit_length())
    return padded - length


def _bad(why: str) -> MalformedError:
    return MalformedError("the bytes are not a packet", why=why, code="bad-packet")


class BusyError(PeerError):
    """The server has enough to do; come again.

    Attributes:
        retry_s: When.
    """

    default_code = "busy"

    def __init__(self, why: str, retry_s: float, code: str = default_code) -> None:
        self.retry_s = math.ceil(retry_s * 1000) / 1000
        fix = f"Ask again in {self.retry_s:g} s"
        super().__init__("the server is busy", why=why, fix=fix, code=code)


def busy(why: str, retry_s: float) -> BusyError:
    """The refusal of one question too many."""
    return BusyError(why, retry_s)


_KNOWN: Final[dict[str, tuple[type[SealiftError], str]]] = {
    "bad-request": (MalformedError, "the request does not match the model's form"),
    "request-too-large": (MalformedError, "the request is too large"),
    "bad-packet": (MalformedError, "the server could not read the packet"),
    "model-failed": (JobError, "the model failed on this request"),
    "request-timeout": (PeerError, "the server did not process the request in time"),
    "tokens-not-taken": (PeerError, "the server ended the generation"),
    "server-stopping": (PeerError, "the server is stopping"),
}


def explain_refusal(refused: Refused) -> SealiftError:
    """The error; a server's own text is made harmless to print."""
    line = visible(refused.line)[:MAX_LINE_CHARACTERS]
    if refused.code == "busy":
        return BusyError(line, min(refused.retry_ms, 3_600_000) / 1000)
    if refused.code in _KNOWN:
        kind, what = _KNOWN[refused.code]
        why = "" if line == what else line
        return kind(what, why=why, code=refused.code)
    return RefusedError(
        "the server refused the request", why=line, code="request-refused"
    )
