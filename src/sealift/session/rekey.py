"""Renewing a session: the whole handshake again, chained to th2 (rule C7).

Whoever holds the keys of the session cannot compute the next ones, and cannot take part
in the renewal either: it is authenticated by identity, evidence and instance key, as the
first handshake was. The peer must be the very same process.
"""

from __future__ import annotations

from sealift.errors import PolicyError
from sealift.session.endpoint import Endpoint, Established, PeerPolicy, VerifiedPeer
from sealift.session.handshake import Initiator, Responder


def start_renewal(
    endpoint: Endpoint, policy: PeerPolicy, current: Established
) -> Initiator:
    """The initiator of a handshake that continues ``current``."""
    return Initiator(endpoint, policy, renews=current)


def answer_renewal(
    endpoint: Endpoint, policy: PeerPolicy, current: Established
) -> Responder:
    """The responder of a handshake that continues ``current``."""
    return Responder(endpoint, policy, renews=current)


def verify_same_peer(current: Established, renewed: Established) -> Established:
    """The renewed session, if its peer is the one that we had.

    Raises:
        PolicyError: if role, name, identity or instance changed.
    """
    if _lasting(current.peer) != _lasting(renewed.peer):
        raise PolicyError(
            "another peer answered the rekey",
            why="role, name, identity and instance key must stay the same",
            code="rekey-peer-differs",
        )
    return renewed


def _lasting(peer: VerifiedPeer) -> tuple[object, ...]:
    return (peer.role, peer.name, peer.identity, peer.instance, peer.agreement)
