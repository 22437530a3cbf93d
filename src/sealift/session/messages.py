"""The four handshake messages as frozen records (spec/handshake.md section 2).

Their canonical bytes are what the transcript hashes, so a field that is not listed
here is not agreed on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sealift.attest.evidence import CHALLENGE_BYTES, Evidence
from sealift.crypto.hpke import HpkePublicKey
from sealift.crypto.sign import SIGNATURE_BYTES, PublicKey
from sealift.errors import MalformedError
from sealift.ids import Digest, Role, check_name

VERSION: Final = 1
MAX_HANDSHAKE_BYTES: Final = 7 << 20  # evidence in base64, below a frame's limit
MAX_HELLO_BYTES: Final = 1 << 14  # anybody can send one, and it carries no evidence
MAX_SUITES: Final = 8
TRANSCRIPT_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """What one side brings to the exchange; both sides' params make th1.

    Attributes:
        version: Version of this protocol.
        suites: AEAD suites: the initiator's offer by preference, the responder's one.
        role: What this process does in the job.
        name: Name of the party or process.
        identity: The party's identity key, or None.
        agreement: Digest of the agreement that it works under.
        instance: Key made by this process at its start.
        challenge: 32 fresh random bytes.
        exchange: Offer (initiator) or answer (responder) of the hybrid key exchange.
        hpke: Where keys for this side are sent; fresh per session.
        predecessor: th2 of the session that this one renews; empty for a first one.
    """

    version: int
    suites: tuple[int, ...]
    role: Role
    name: str
    identity: PublicKey | None
    agreement: Digest
    instance: PublicKey
    challenge: bytes
    exchange: bytes
    hpke: HpkePublicKey
    predecessor: bytes

    def __post_init__(self) -> None:
        check_name(self.name, what="endpoint name")
        _require_length("challenge", self.challenge, (CHALLENGE_BYTES,))
        _require_length("predecessor", self.predecessor, (0, TRANSCRIPT_BYTES))
        if not 0 < len(self.suites) <= MAX_SUITES:
            raise MalformedError("bad number of suites", field="suites")


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What ties one side to th1: signatures over it, and evidence bound to it."""

    evidence: Evidence | None
    identity: bytes | None
    instance: bytes

    def __post_init__(self) -> None:
        _require_length("proof.instance", self.instance, (SIGNATURE_BYTES,))
        if self.identity is not None:
            _require_length("proof.identity", self.identity, (SIGNATURE_BYTES,))


@dataclass(frozen=True, slots=True)
class Hello:
    """Message 1, initiator to responder."""

    params: Params


@dataclass(frozen=True, slots=True)
class Reply:
    """Message 2, responder to initiator."""

    params: Params
    proof: Proof


@dataclass(frozen=True, slots=True)
class Answer:
    """Message 3, initiator to responder."""

    proof: Proof
    finished: bytes


@dataclass(frozen=True, slots=True)
class Done:
    """Message 4, responder to initiator."""

    finished: bytes


def _require_length(field: str, value: bytes, allowed: tuple[int, ...]) -> None:
    if len(value) not in allowed:
        raise MalformedError(f"{field} has {len(value)} bytes", field=field)
