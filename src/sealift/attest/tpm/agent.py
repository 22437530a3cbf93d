"""What is said to an attestation agent, a process or machine that attests for another.

One request, one reply, in turn. Every message is four bytes of length and canonical
JSON. Whoever offers more than these requests (a guest of a rehearsal does) has a larger
vocabulary; the frames stay the same. The agent owns the TPM and its logs; the attester at
the end here knows only its requests, behind a socket of this machine, and believes nothing.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from sealift import codec
from sealift.attest.evidence import Evidence
from sealift.attest.runtimelog import RuntimeEvent
from sealift.attest.tpm.enrolment import EnrolmentRequest, SignedEnrolment
from sealift.crypto.tpmcredential import Credential
from sealift.errors import MalformedError, PeerError, SealiftError, UnavailableError
from sealift.ids import Digest

MAX_REQUEST_BYTES: Final = 32 << 10  # what a serial port's buffers hold
MAX_REPLY_BYTES: Final = 8 << 20
_LENGTH_BYTES: Final = 4

Read = Callable[[int], bytes]  # at most so many bytes; none at the end


@dataclass(frozen=True, slots=True)
class Collect:
    """Make evidence, or continue that of the digest ``earlier``; its body comes back."""

    bound: bytes
    earlier: Digest | None


@dataclass(frozen=True, slots=True)
class Enrol:
    """Show the keys and certificates that an enrolment needs."""


@dataclass(frozen=True, slots=True)
class AnswerChallenge:
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
class Describe:
    """Tell what the agent is and holds: ``Description``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What an agent is and holds.

    Attributes:
        kind: Of its evidence.
        media_type: Of its evidence.
        events: The runtime log of this boot.
        enrolments: Of its attestation key.
    """

    kind: str
    media_type: str
    events: tuple[RuntimeEvent, ...]
    enrolments: tuple[SignedEnrolment, ...]


@dataclass(frozen=True, slots=True)
class AgentReply:
    """What came of it.

    Attributes:
        content: The answer; its format is that of the verb.
        error: Empty, or what went wrong.
        code: The stable name of that error.
    """

    content: bytes = b""
    error: str = ""
    code: str = ""


AgentRequest = Collect | Enrol | AnswerChallenge | Keep | Measure | Describe
AGENT_VERBS: Final[Mapping[str, type[Any]]] = MappingProxyType(
    {
        "collect": Collect,
        "enrol": Enrol,
        "answer": AnswerChallenge,
        "keep": Keep,
        "measure": Measure,
        "describe": Describe,
    }
)


class Vocabulary:
    """The requests that one port takes.

    Args:
        verbs: Classes by what they are called on the port.
    """

    def __init__(self, verbs: Mapping[str, type[Any]]) -> None:
        self._kinds = dict(verbs)
        self._verbs = {kind: verb for verb, kind in verbs.items()}

    def encode(self, request: object) -> bytes:
        """One request as a frame.

        Raises:
            MalformedError: if it is larger than the port's buffers.
        """
        verb = self._verbs[type(request)]
        raw = codec.encode({"verb": verb, "request": codec.to_plain(request)})
        if len(raw) > MAX_REQUEST_BYTES:
            raise MalformedError("the request is too large for the agent")
        return _frame(raw)

    def decode(self, raw: bytes) -> Any:
        """The request in a frame's content.

        Raises:
            MalformedError: if it is none of this port's.
        """
        plain = codec.parse(raw, max_bytes=MAX_REQUEST_BYTES)
        fits = isinstance(plain, dict) and plain.keys() == {"verb", "request"}
        verb = plain["verb"] if fits else None
        kind = self._kinds.get(verb) if isinstance(verb, str) else None
        if kind is None:
            raise MalformedError("the message is not a request to this agent")
        return codec.from_plain(kind, plain["request"])


AGENT: Final = Vocabulary(AGENT_VERBS)


def encode_reply(reply: AgentReply) -> bytes:
    """One reply as a frame."""
    return _frame(codec.encode(reply))


def error_reply(error: SealiftError) -> AgentReply:
    """The reply that an error becomes."""
    return AgentReply(error=str(error)[:1000], code=error.code)


def decode_reply(raw: bytes) -> AgentReply:
    """The reply in a frame's content.

    Raises:
        MalformedError: if it is none.
    """
    return codec.decode(AgentReply, raw, max_bytes=MAX_REPLY_BYTES)


def read_frame(read: Read, limit: int) -> bytes:
    """The content of the next frame.

    Raises:
        MalformedError: if it is larger than ``limit``.
        PeerError: ``agent-gone`` if the port was closed.
    """
    size = int.from_bytes(read_exactly(read, _LENGTH_BYTES))
    if size > limit:
        raise MalformedError(
            f"a message of {size} bytes is too large", why=f"the limit is {limit}"
        )
    return read_exactly(read, size)


def read_exactly(read: Read, size: int) -> bytes:
    """So many bytes; raises PeerError ``agent-gone`` if the port closes before."""
    parts, missing = [], size
    while missing:
        part = read(missing)
        if not part:
            raise PeerError("the agent closed the connection", code="agent-gone")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def _frame(raw: bytes) -> bytes:
    return len(raw).to_bytes(_LENGTH_BYTES) + raw


SCHEME: Final = "unix:"
TIMEOUT_S: Final = 60.0


class AgentAttester:
    """The agent at a Unix socket; threads may share it. Close it at the end.

    Args:
        place: ``unix:PATH``.

    Raises:
        UnavailableError: ``agent-gone``: nobody answers there.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(TIMEOUT_S)
        try:
            self._socket.connect(str(Path(place.removeprefix(SCHEME))))
        except OSError as error:
            self._socket.close()
            raise _gone(place, error) from None
        try:
            self._about = self._describe()
        except BaseException:
            self.close()
            raise

    @property
    def events(self) -> tuple[RuntimeEvent, ...]:
        """The runtime log of its boot."""
        return self._describe().events

    def enrolments(self) -> tuple[SignedEnrolment, ...]:
        """Every enrolment of its present attestation key."""
        return self._describe().enrolments

    def collect(self, bound: bytes) -> Evidence:
        """See ``Attester.collect``."""
        return self._evidence(Collect(bound, None))

    def continue_from(self, earlier: Evidence, bound: bytes) -> Evidence:
        """See ``ContinuingAttester.continue_from``."""
        return self._evidence(Collect(bound, earlier.digest))

    def measure(self, event: RuntimeEvent) -> None:
        """See ``MeasuringAttester.measure``."""
        self._ask(Measure(event.kind, event.content))

    def enrolment_request(self) -> EnrolmentRequest:
        """What a broker needs to enrol the host."""
        return codec.decode(EnrolmentRequest, self._ask(Enrol()))

    def answer(self, credential: Credential) -> bytes:
        """The secret of a credential for the host."""
        return self._ask(AnswerChallenge(credential.blob, credential.seed))

    def keep_enrolment(self, signed: SignedEnrolment) -> None:
        """Have it show an enrolment from now on."""
        self._ask(Keep(codec.encode(signed)))

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _evidence(self, request: Collect) -> Evidence:
        about = self._about
        return Evidence(about.kind, about.media_type, self._ask(request))

    def _describe(self) -> Description:
        return codec.decode(
            Description, self._ask(Describe()), max_bytes=MAX_REPLY_BYTES
        )

    def _ask(self, request: AgentRequest) -> bytes:
        frame = AGENT.encode(request)
        try:
            with self._lock:
                self._socket.sendall(frame)
                raw = read_frame(self._socket.recv, MAX_REPLY_BYTES)
        except (OSError, PeerError) as error:
            # Out of step with it from here on: no later answer may be taken for this.
            self._socket.close()
            raise _gone(self._place, error) from None
        except MalformedError:
            self._socket.close()  # likewise: the rest of it was not read
            raise
        reply = decode_reply(raw)
        if reply.error:
            raise UnavailableError(reply.error, code=reply.code)
        return reply.content


def _gone(place: str, error: OSError | SealiftError) -> UnavailableError:
    return UnavailableError(
        f"the attestation agent at {place} does not answer",
        why=error,
        code="agent-gone",
    )
