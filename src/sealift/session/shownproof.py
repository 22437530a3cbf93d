"""What a peer showed in a handshake, kept so that others can verify it later.

A receipt is signed by an instance key. That this key belongs to an attested process of
the agreement is shown by the handshake in which it was presented: both sides' parameters
and the peer's proof over them. Anybody with the agreement verifies it offline; it says
nothing about when it happened. Nothing in it is secret.
"""

from __future__ import annotations

from dataclasses import dataclass

from sealift import codec
from sealift.session.endpoint import PeerPolicy, VerifiedPeer
from sealift.session.messages import MAX_HANDSHAKE_BYTES, Params, Proof
from sealift.session.proof import screen_params, verify_peer
from sealift.session.transcript import Side, hash_params


@dataclass(frozen=True, slots=True)
class ShownProof:
    """One side's proof, with what it is a proof over.

    Attributes:
        initiator: Parameters of the side that spoke first.
        responder: Parameters of the other.
        side: Whose proof it is.
        proof: Signatures and evidence over both parameters.
    """

    initiator: Params
    responder: Params
    side: Side
    proof: Proof

    @classmethod
    def parse(cls, content: bytes) -> ShownProof:
        """Read canonical bytes.

        Raises:
            MalformedError: if they are not a shown proof.
        """
        return codec.decode(cls, content, max_bytes=MAX_HANDSHAKE_BYTES)

    def encode(self) -> bytes:
        """Canonical bytes."""
        return codec.encode(self)

    def verify(self, policy: PeerPolicy) -> VerifiedPeer:
        """Verify it as its receiver did in the handshake.

        Raises:
            RefusedError: it does not verify, or is not what ``policy`` demands.
        """
        initiates = self.side is Side.INITIATOR
        shown, other = self.initiator, self.responder
        if not initiates:
            shown, other = other, shown
        screen_params(policy, shown, other.agreement)
        th1 = hash_params(self.initiator, self.responder)
        return verify_peer(policy, shown, self.proof, side=self.side, th1=th1)
