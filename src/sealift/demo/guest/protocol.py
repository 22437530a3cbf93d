"""What is said over the guest's second serial port: one request, one reply, in turn.

The agent begins with a preamble, because firmware and kernel may write to the port
before it. Then every message is four bytes of length and canonical JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from sealift import codec
from sealift.errors import MalformedError, PeerError, SealiftError
from sealift.ids import Digest

PREAMBLE: Final = b"\nsealift guest agent, version 1\n"
MAX_REQUEST_BYTES: Final = 32 << 10  # what a serial port's buffers hold
MAX_REPLY_BYTES: Final = 8 << 20
_MAX_NOISE_BYTES: Final = 1 << 20
_LENGTH_BYTES: Final = 4

Act = Literal["exec", "bundle", "preload", "module"]
Read = Callable[[int], bytes]  # at most so many bytes; none at the end
Write = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class Start:
    """Open the TPM. ``issuers``: DER certificates above the endorsement key's."""

    issuers: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Collect:
    """Make evidence, or continue that of the digest ``earlier``."""

    bound: bytes
    earlier: Digest | None


@dataclass(frozen=True, slots=True)
class Enrol:
    """Show the keys and certificates that an enrolment needs."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Open a credential."""

    blob: bytes
    seed: bytes


@dataclass(frozen=True, slots=True)
class Keep:
    """Keep an enrolment; ``signed`` is its canonical encoding."""

    signed: bytes


@dataclass(frozen=True, slots=True)
class Measure:
    """Extend the runtime log."""

    kind: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Misbehave:
    """Do what a host must not do."""

    act: Act


@dataclass(frozen=True, slots=True)
class ShutDown:
    """Switch the machine off in good order, which tells the TPM."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of it.

    Attributes:
        content: The answer; its format is that of the verb.
        error: Empty, or what went wrong.
        code: The stable name of that error.
    """

    content: bytes = b""
    error: str = ""
    code: str = ""


Request = Start | Collect | Enrol | Answer | Keep | Measure | Misbehave | ShutDown
_REQUESTS: Final[dict[str, type[Request]]] = {
    "start": Start,
    "collect": Collect,
    "enrol": Enrol,
    "answer": Answer,
    "keep": Keep,
    "measure": Measure,
    "misbehave": Misbehave,
    "shut-down": ShutDown,
}
_VERBS: Final = {kind: verb for verb, kind in _REQUESTS.items()}


def encode_request(request: Request) -> bytes:
    """One request as a frame.

    Raises:
        MalformedError: if it is larger than the port's buffers.
    """
    plain = codec.to_plain(request)
    raw = codec.encode({"verb": _VERBS[type(request)], "request": plain})
    if len(raw) > MAX_REQUEST_BYTES:
        raise MalformedError("a request is too large for the guest's port")
    return _frame(raw)


def decode_request(raw: bytes) -> Request:
    """The request in a frame's content.

    Raises:
        MalformedError: if it is none.
    """
    plain = codec.parse(raw, max_bytes=MAX_REQUEST_BYTES)
    fits = isinstance(plain, dict) and plain.keys() == {"verb", "request"}
    kinds = [kind for verb, kind in _REQUESTS.items() if fits and plain["verb"] == verb]
    if not kinds:
        raise MalformedError("not a request to a guest")
    request: Request = codec.from_plain(kinds[0], plain["request"])
    return request


def encode_reply(reply: Reply) -> bytes:
    """One reply as a frame."""
    return _frame(codec.encode(reply))


def error_reply(error: SealiftError) -> Reply:
    """The reply that an error becomes."""
    return Reply(error=str(error)[:1000], code=error.code)


def decode_reply(raw: bytes) -> Reply:
    """The reply in a frame's content.

    Raises:
        MalformedError: if it is none.
    """
    return codec.decode(Reply, raw, max_bytes=MAX_REPLY_BYTES)


def read_frame(read: Read, limit: int) -> bytes:
    """The content of the next frame.

    Raises:
        MalformedError: if it is larger than ``limit``.
        PeerError: if the port was closed.
    """
    size = int.from_bytes(_exactly(read, _LENGTH_BYTES))
    if size > limit:
        raise MalformedError(f"a message of {size} bytes", why=f"limit {limit}")
    return _exactly(read, size)


def skip_to_preamble(read: Read) -> None:
    """Read past whatever was written before the agent spoke.

    Raises:
        MalformedError: if it never does.
        PeerError: if the port was closed.
    """
    seen = b""
    for _ in range(_MAX_NOISE_BYTES):
        seen = (seen + _exactly(read, 1))[-len(PREAMBLE) :]
        if seen == PREAMBLE:
            return
    raise MalformedError("no agent speaks on the guest's port")


def _frame(raw: bytes) -> bytes:
    return len(raw).to_bytes(_LENGTH_BYTES) + raw


def _exactly(read: Read, size: int) -> bytes:
    parts, missing = [], size
    while missing:
        part = read(missing)
        if not part:
            raise PeerError("the guest's port was closed", code="guest-gone")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
