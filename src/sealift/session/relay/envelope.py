"""What crosses a connection to the relay: an envelope around every frame of every circuit.

Layout: version u8 | kind u8 | circuit id 16 | name length u8 | name | payload.
The relay reads envelopes and never what is in a frame (spec/handshake.md section 8).

Whose a name is: one that the agreement gives a key is registered by a signature, with that
key, over the relay's challenge, the agreement and the name; nobody else can hold it or
take a place from whoever does. All other names are strangers', who share a few places,
until somebody who judged their evidence vouches for them: the accelerator, which has no
party's identity.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from sealift.crypto.keys import Label
from sealift.crypto.sign import PublicKey, Signer
from sealift.errors import AuthenticationError, MalformedError, PeerError
from sealift.ids import Buffer, Digest, check_name

VERSION: Final = 1
CIRCUIT_BYTES: Final = 16
HEAD_BYTES: Final = 2 + CIRCUIT_BYTES + 1
MAX_ENVELOPE_BYTES: Final = HEAD_BYTES + 63
MAX_REGISTRATION_BYTES: Final = HEAD_BYTES + 64  # a name of 63, or a signature
NO_CIRCUIT: Final = bytes(CIRCUIT_BYTES)
# What one end may have under way on a circuit, and what a frame counts for in it.
WINDOW_BYTES: Final = 4 << 20
FRAME_COST_BYTES: Final = 64
CHALLENGE_BYTES: Final = 32
CIRCUITS: Final = 32  # that a party's connection may have opened; more for many parties
STRANGERS: Final = 16  # registered at one time
STRANGERS_EACH: Final = 4  # of them from one address

Prove = Callable[[bytes], bytes]
"""Signs a relay's challenge."""


class EnvelopeKind(IntEnum):
    """What an envelope is about."""

    REGISTER = 1  # name: what the dialing end wants to be called
    REGISTERED = 2  # payload: the relay's clock, u64 seconds since 1970; or nothing
    OPEN = 3  # name: the wanted peer, or (to that peer) who opens
    OPENED = 4
    FRAME = 5  # payload: a frame of the circuit
    CREDIT = 6  # payload: u32, bytes that the receiver took out of its queue
    CLOSE = 7  # payload: why
    REFUSED = 8  # payload: why
    CHALLENGE = 9  # payload: 32 random bytes, to whoever wants a name that has a key
    PROVE = 10  # payload: a signature of them


@dataclass(frozen=True, slots=True)
class RelayEnvelope:
    """One parsed envelope."""

    kind: EnvelopeKind
    circuit: bytes = NO_CIRCUIT
    name: str = ""
    payload: Buffer = b""

    def encode(self) -> bytes:
        """The bytes that cross the connection."""
        name = self.name.encode()
        head = bytes([VERSION, self.kind]) + self.circuit + bytes([len(name)]) + name
        return b"".join((head, self.payload))

    @classmethod
    def parse(cls, frame: Buffer) -> RelayEnvelope:
        """Read an envelope; its payload is a view of the frame.

        Raises:
            MalformedError: for another version, an unknown kind, or a bad name.
        """
        if len(frame) < HEAD_BYTES or frame[0] != VERSION:
            raise _malformed("too short, or another version", 0)
        try:
            kind = EnvelopeKind(frame[1])
        except ValueError:
            raise _malformed("unknown kind", 1) from None
        start = HEAD_BYTES + frame[HEAD_BYTES - 1]
        name = bytes(frame[HEAD_BYTES:start]).decode("ascii", "replace")
        if len(frame) < start:
            raise _malformed("the name is truncated", HEAD_BYTES)
        if name:
            check_name(name, what="endpoint name")
        circuit = bytes(frame[2 : 2 + CIRCUIT_BYTES])
        return cls(kind, circuit, name, memoryview(frame)[start:])

    @property
    def reason(self) -> str:
        """The payload of ``CLOSE`` and ``REFUSED``: a stable name of an error."""
        return bytes(self.payload[:64]).decode("ascii", "replace")

    @property
    def clock_s(self) -> int | None:
        """The payload of ``REGISTERED``; None where none is said."""
        return int.from_bytes(self.payload, "big") if len(self.payload) == 8 else None

    @property
    def credit_bytes(self) -> int:
        """The payload of ``CREDIT``.

        Raises:
            MalformedError: if it is not a u32 above zero.
        """
        credit = int.from_bytes(self.payload, "big")
        if len(self.payload) != 4 or credit == 0:
            raise _malformed("bad credit", HEAD_BYTES)
        return credit


def fresh_circuit() -> bytes:
    """An id for a new circuit; 128 random bits, so nobody guesses another's."""
    return secrets.token_bytes(CIRCUIT_BYTES)


def credit(circuit: bytes, credit_bytes: int) -> bytes:
    """An envelope that gives credit back."""
    payload = credit_bytes.to_bytes(4, "big")
    return RelayEnvelope(EnvelopeKind.CREDIT, circuit, payload=payload).encode()


def close(circuit: bytes, reason: str) -> bytes:
    """An envelope that closes a circuit."""
    return RelayEnvelope(EnvelopeKind.CLOSE, circuit, payload=reason.encode()).encode()


def refuse(circuit: bytes, reason: str) -> bytes:
    """An envelope that refuses a registration or a circuit."""
    return RelayEnvelope(
        EnvelopeKind.REFUSED, circuit, payload=reason.encode()
    ).encode()


_WHAT: Final = {
    "unknown-peer": (
        "the relay has no process of that name",
        "Start it, or check the name",
    ),
    "name-taken": ("the name is in use at the relay", "Stop the other process first"),
    "name-unproven": (
        "the name belongs to a party, and the process did not prove it with that party's key",
        "Use the key that the agreement names",
    ),
    "peer-gone": ("the peer's connection ended", "See its log"),
    "peer-closed": ("the peer closed the circuit", ""),
    "flooded": (
        "the relay closed the connection: this process sent too much",
        "Report it",
    ),
    "too-many-circuits": ("too many relay connections are open", "Close some of them"),
    "peer-busy": ("the peer accepts no more connections now", "Try again later"),
    "relay-full": ("the relay accepts no more unproven connections", "Try again later"),
    "link-closed": ("the connection to the relay is closed", ""),
    "relay-gone": (
        "the relay stopped",
        "Check that the host's command, which runs the orchestrator, still runs",
    ),
}


def relay_error(reason: str, peer: str = "") -> PeerError:
    """The error that stands for a reason; unknown reasons stay unnamed."""
    what, fix = _WHAT.get(reason, ("the relay closed the connection", ""))
    code = reason if reason in _WHAT else "peer"
    return PeerError(f"{peer}: {what}" if peer else what, fix=fix, code=code)


def _malformed(why: str, offset: int) -> MalformedError:
    return MalformedError(
        "the relay envelope is malformed", why=why, offset=offset, code="bad-envelope"
    )


@dataclass(frozen=True, slots=True)
class Registry:
    """Names with keys, and the places of those without.

    Attributes:
        agreement: Part of what is signed; None where no name has a key.
        keys: By name.
        strangers: How many may be registered at one time.
        strangers_each: How many of them from one address.
        proof_s: How long a stranger may stay one; None where nobody vouches.
        circuits: How many a connection that proved its name may have opened.
    """

    agreement: Digest | None = None
    keys: Mapping[str, PublicKey] = field(default_factory=dict)
    strangers: int = STRANGERS
    strangers_each: int = STRANGERS_EACH
    proof_s: float | None = None
    circuits: int = CIRCUITS

    def verify(self, name: str, challenge: bytes, signature: Buffer) -> None:
        """Check a proof of a name that has a key.

        Raises:
            AuthenticationError: if it does not verify.
        """
        if self.agreement is None:
            raise AuthenticationError
        signed = _signed(self.agreement, name, challenge)
        self.keys[name].verify(Label.RELAY_NAME, signed, signature)


def prover(signer: Signer, agreement: Digest, name: str) -> Prove:
    """How whoever holds a name's key proves it."""
    return lambda challenge: signer.sign(
        Label.RELAY_NAME, _signed(agreement, name, challenge)
    )


def _signed(agreement: Digest, name: str, challenge: bytes) -> bytes:
    if len(challenge) != CHALLENGE_BYTES:
        raise MalformedError("a challenge must have 32 bytes", code="bad-envelope")
    return agreement.raw + challenge + name.encode()
