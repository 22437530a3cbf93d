"""The holder's way to a direct path: try what is offered, else stay with the relay.

A holder dials nothing that it was not offered inside its attested session. A place that
nobody answered at is not tried again by this process, so that an address behind a NAT
costs its seconds once.
"""

from __future__ import annotations

import socket
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from sealift.channel.transports.localsocket import dial_local
from sealift.channel.transports.memfd import MemfdTransport
from sealift.channel.transports.tcp import TcpTransport, connect_socket
from sealift.channel.transports.transport import SlotTransport
from sealift.crypto.keys import SecretKey
from sealift.errors import MalformedError, PeerError, SealiftError
from sealift.travel.direct import PROOF_S, DirectOffer, Kind, PathName, prove_holder

DIAL_S: Final = 2.0
MAX_OFFERS: Final = 4
BOTH: Final[frozenset[Kind]] = frozenset({"memfd", "tcp"})


@dataclass(frozen=True, slots=True)
class Taken:
    """Which path the cargo takes, and why.

    Attributes:
        transport: Of a direct path; None is the relay.
        why: In a few words, for events.
    """

    name: PathName
    why: str
    transport: SlotTransport | None = None


class Pathfinder:
    """Chooses a path per visit.

    Args:
        allowed: Kinds of direct path that this holder takes; none is the relay only.
    """

    def __init__(self, allowed: Collection[Kind] = BOTH) -> None:
        self._allowed = frozenset(allowed)
        self._silent: set[tuple[Kind, str]] = set()

    def take(
        self, offers: tuple[DirectOffer, ...], key: SecretKey, frame_bytes: int
    ) -> Taken:
        """The first offered path that can be had.

        Args:
            offers: From the accelerator, in its order.
            key: Exported from the visit's session.
            frame_bytes: Longest frame.
        """
        why = (
            "no direct path was offered" if not offers else "only the relay is allowed"
        )
        for offer in offers[:MAX_OFFERS]:
            if offer.kind not in self._allowed:
                continue
            place = (offer.kind, offer.address)
            if place in self._silent:
                why = f"{offer.kind}: nobody answered before"
                continue
            try:
                transport = self._come(offer, key, frame_bytes)
            except SealiftError as error:
                why = f"{offer.kind}: {error.what}"
            else:
                return Taken(offer.kind, "offered and proven", transport)
        return Taken("relay", why)

    def _come(
        self, offer: DirectOffer, key: SecretKey, frame_bytes: int
    ) -> SlotTransport:
        try:
            sock = _dial(offer)
        except PeerError:
            self._silent.add((offer.kind, offer.address))
            raise
        return _board(sock, offer, key, frame_bytes)


def _board(
    sock: socket.socket, offer: DirectOffer, key: SecretKey, frame_bytes: int
) -> SlotTransport:
    try:
        prove_holder(sock, key, offer)
        if offer.kind == "memfd":
            return MemfdTransport.accept(sock, timeout_s=PROOF_S)
        return TcpTransport(sock, max_frame_bytes=frame_bytes)
    except BaseException:
        with suppress(OSError):
            sock.close()
        raise


def _dial(offer: DirectOffer) -> socket.socket:
    if offer.kind == "memfd":
        return dial_local(offer.address, DIAL_S)
    host, _, port = offer.address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit():
        raise MalformedError("not an address", field="address")
    return connect_socket(host.strip("[]"), int(port), timeout_s=DIAL_S)
