"""Attested sessions: handshake, sealed messages, and the relay that carries them.

::

    link = Link.dial(("127.0.0.1", 7410), "hospital-a")
    circuit = link.open("accelerator", wait_s=8)
    with connect(circuit, endpoint, policy) as session:
        session.send_message(request)
        answer = session.receive_message(Answer, timeout_s=10)
"""

from sealift.session.endpoint import Endpoint, Established, PeerPolicy, VerifiedPeer
from sealift.session.establish import accept, connect
from sealift.session.link import Link
from sealift.session.relay import Relay
from sealift.session.session import Incoming, Session

__all__ = [
    "Endpoint",
    "Established",
    "Incoming",
    "Link",
    "PeerPolicy",
    "Relay",
    "Session",
    "VerifiedPeer",
    "accept",
    "connect",
]
