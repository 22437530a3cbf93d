"""A session with whoever keeps an owner's keys: its own broker, or the shared one.

A shared broker signs with a key that the owner appointed; it shows the appointment before
anything else is asked of it.
"""

from __future__ import annotations

from sealift.ids import Role
from sealift.release.appointment import SignedAppointment
from sealift.release.collect import require_owners_broker
from sealift.release.signed import VerifiedAgreement
from sealift.session.endpoint import Endpoint
from sealift.session.establish import HANDSHAKE_TIMEOUT_S, connect
from sealift.session.link import DIAL_TIMEOUT_S, Link
from sealift.session.session import Session
from sealift.travel.peers import expect_speaker, link_name


def meet_broker(
    link: Link,
    endpoint: Endpoint,
    agreement: VerifiedAgreement,
    owner: str,
    *,
    open_s: float = DIAL_TIMEOUT_S,
    wait_s: float = 0.0,
    timeout_s: float = HANDSHAKE_TIMEOUT_S,
    speaks: SignedAppointment | None = None,
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
        speaks: Of a shared broker that asks: by whose leave.

    Raises:
        PeerError: if it is not there.
        RefusedError: if it is somebody else, or not appointed (any more).
    """
    circuit = link.open(link_name(Role.BROKER, owner), open_s, wait_s=wait_s)
    session = connect(circuit, endpoint, expect_speaker(agreement, owner), timeout_s)
    try:
        party = agreement.party(owner)
        require_owners_broker(session, party, agreement, speaks=speaks)
    except BaseException:
        session.close()
        raise
    return session
