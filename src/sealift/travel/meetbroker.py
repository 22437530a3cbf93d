"""A session with an owner's broker, over the relay."""

from __future__ import annotations

from sealift.ids import Role
from sealift.release.signed import VerifiedAgreement
from sealift.session.endpoint import Endpoint
from sealift.session.establish import HANDSHAKE_TIMEOUT_S, connect
from sealift.session.relay.client import DIAL_TIMEOUT_S, Link
from sealift.session.session import Session
from sealift.travel.peers import expect_broker, link_name


def meet_broker(
    link: Link,
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
        link: To the relay.
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
    circuit = link.open(link_name(Role.BROKER, owner), open_s, wait_s=wait_s)
    return connect(circuit, endpoint, expect_broker(agreement, owner), timeout_s)
