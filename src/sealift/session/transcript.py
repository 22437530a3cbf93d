"""Transcript hashes and the key schedule of a session (rule C7).

th1 covers both sides' parameters; evidence and signatures bind th1; th2 adds them; keys
come from the hybrid shared secret and th2. Nothing here decides anything.
"""

from __future__ import annotations

from enum import StrEnum

from sealift import codec
from sealift.crypto.hash import keyed_hash, labelled, verify_equal
from sealift.crypto.kdf import Label, derive
from sealift.crypto.keys import SecretKey
from sealift.ids import Role
from sealift.session.messages import Params, Proof


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
        Label.TRANSCRIPT_PROOFS,
        th1,
        codec.encode(initiator),
        codec.encode(responder),
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
