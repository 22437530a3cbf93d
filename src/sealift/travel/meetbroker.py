"""A session with an owner's broker, over the relay."""

from __future__ import annotations

from sealift.ids import Role
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.session.endpoint import Endpoint
from sealift.session.relay.client import DIAL_TIMEOUT_S, RelayClient
from sealift.session.session import HANDSHAKE_TIMEOUT_S, Session, connect
from sealift.travel.peers import expect_broker, relay_name


def meet_broker(
    relay: RelayClient,
    endpoint: Endpoint,
    agreement: VerifiedAgreement,
    owner: str,
    *,
    open_s: float = DIAL_TIMEOUT_S,
    wait_s: float = 0.0,
    timeout_s: float = HANDSHAKE_TIMEOUT_S,
) -> Session:
    """Open one; the caller closes it.

    Args:
        relay: The connection to it.
        endpoint: Ours.
        agreement: Verified and equipped.
        owner: Whose broker.
        open_s: How long the relay may take.
        wait_s: How long the broker may take to appear.
        timeout_s: For the handshake.

    Raises:
        PeerError: if it is not there.
        RefusedError: if it is somebody else.
    """
    circuit = relay.open(relay_name(Role.BROKER, owner), open_s, wait_s=wait_s)
    return connect(circuit, endpoint, expect_broker(agreement, owner), timeout_s)
