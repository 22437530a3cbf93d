"""The four messages of a handshake, transcript hashes, and the key schedule (rule C7).

Messages are frozen records, whose canonical bytes the transcript hashes: a field that is
not listed here is not agreed on (spec/handshake.md section 2). th1 covers both sides' parameters; evidence and signatures bind th1; th2 adds them; keys
come from the hybrid shared secret and th2. Nothing here decides anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sealift import codec
from sealift.attest.evidence import CHALLENGE_BYTES, Evidence
from sealift.crypto.hash import keyed_hash, labelled, verify_equal
from sealift.crypto.hpke import HpkePublicKey
from sealift.crypto.keys import Label, SecretKey, derive
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
            raise MalformedError("the number of suites is wrong", field="suites")


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


class Side(StrEnum):
    """Who spoke first. Independent of the role."""

    INITIATOR = "initiator"
    RESPONDER = "responder"

    @property
    def other(self) -> Side:
        """The opposite side."""
        return Side.RESPONDER if self is Side.INITIATOR else Side.INITIATOR


def hash_params(initiator: Params, responder: Params) -> bytes:
    """th1: everything that both sides brought, canonical."""
    return labelled(
        Label.TRANSCRIPT_PARAMS, codec.encode(initiator), codec.encode(responder)
    )


def bound_value(side: Side, role: Role, th1: bytes) -> bytes:
    """What evidence of one side must carry in its signed field.

    The side is in it besides the role: two ranks have one role, and evidence of one
    must not serve as evidence of the other.
    """
    return labelled(Label.EVIDENCE, side.encode(), role.encode(), th1)


def signed_value(side: Side, role: Role, th1: bytes) -> bytes:
    """What identity and instance keys sign, each under its own label."""
    return labelled(Label.IDENTITY_PROOF, side.encode(), role.encode(), th1)


def hash_proofs(th1: bytes, initiator: Proof, responder: Proof) -> bytes:
    """th2: th1, both evidences and all signatures."""
    return labelled(
        Label.TRANSCRIPT_PROOFS, th1, codec.encode(initiator), codec.encode(responder)
    )


_SEND = {
    Side.INITIATOR: Label.SESSION_SEND_INITIATOR,
    Side.RESPONDER: Label.SESSION_SEND_RESPONDER,
}
_FINISHED = {
    Side.INITIATOR: Label.SESSION_FINISHED_INITIATOR,
    Side.RESPONDER: Label.SESSION_FINISHED_RESPONDER,
}


class KeySchedule:
    """Keys of one session, all from its master secret and th2.

    Args:
        shared: Shared secret of the hybrid exchange; wiped here.
        th2: Hash of the whole exchange.
    """

    def __init__(self, shared: SecretKey, th2: bytes) -> None:
        self._master = derive(shared, Label.SESSION_MASTER, th2)
        self.th2 = th2
        shared.wipe()

    def traffic_key(self, sender: Side) -> SecretKey:
        """Base key of the stream that ``sender`` seals."""
        return derive(self._master, _SEND[sender], self.th2)

    def finished(self, sender: Side) -> bytes:
        """MAC that shows ``sender`` has the keys and the same transcript."""
        key = derive(self._master, _FINISHED[sender], self.th2)
        return keyed_hash(key, self.th2)

    def verify_finished(self, sender: Side, received: bytes) -> None:
        """Check a received MAC.

        Raises:
            AuthenticationError: if it differs.
        """
        verify_equal(self.finished(sender), received)

    def export(self, label: Label, context: bytes = b"") -> SecretKey:
        """A key for another purpose in this session (the visit key)."""
        exporter = derive(self._master, Label.SESSION_EXPORT, self.th2)
        return derive(exporter, label, context)

    def wipe(self) -> None:
        """Forget the master secret; nothing can be derived any more."""
        self._master.wipe()
