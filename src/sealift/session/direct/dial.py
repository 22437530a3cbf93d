"""The dialling end of direct paths: try what is offered, else stay with the relay.

A holder dials nothing that it was not offered inside its attested session, and of what it
is offered only local sockets of Sealift's and addresses that its own settings name: an
accelerator learns nothing of what else can be reached from here, and of a dial that
failed it is told nothing. A place that nobody answered at is not tried again by this
process, so that an address behind a NAT costs its seconds once.
"""

from __future__ import annotations

import socket
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from sealift.channel.transport.memfd import MemfdTransport
from sealift.channel.transport.tcp import TcpTransport, connect_socket
from sealift.channel.transport.transport import SlotTransport
from sealift.channel.transport.unixsocket import dial_local
from sealift.crypto.keys import SecretKey
from sealift.errors import MalformedError, PeerError, SealiftError
from sealift.session.direct.exchange import (
    PROOF_S,
    DirectOffer,
    PathName,
    prove_to_host,
)

DIAL_S: Final = 2.0
MAX_OFFERS: Final = 4


@dataclass(frozen=True, slots=True)
class Taken:
    """Which path the cargo takes, and why.

    Attributes:
        transport: Of a direct path; None is the relay.
        why: In a few words, for the holder's own events.
    """

    name: PathName
    why: str
    transport: SlotTransport | None = None


class PathDialler:
    """Chooses a path per visit.

    Args:
        local: Whether local sockets are taken.
        places: Addresses that may be dialled, as they are written in offers.
    """

    def __init__(self, *, local: bool = True, places: Collection[str] = ()) -> None:
        self._local = local
        self._places = frozenset(places)
        self._silent: set[str] = set()  # of these places

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
            "none of the paths that were offered is allowed here"
            if offers
            else "no direct path was offered"
        )
        for offer in offers[:MAX_OFFERS]:
            if not self._is_allowed(offer):
                continue
            if offer.address in self._silent:
                why = f"{offer.kind}: nobody answered before"
                continue
            try:
                transport = self._come(offer, key, frame_bytes)
            except SealiftError as error:
                why = f"{offer.kind}: {error.what}"
            else:
                return Taken(offer.kind, "offered and proven", transport)
        return Taken("relay", why)

    def _is_allowed(self, offer: DirectOffer) -> bool:
        return self._local if offer.kind == "memfd" else offer.address in self._places

    def _come(
        self, offer: DirectOffer, key: SecretKey, frame_bytes: int
    ) -> SlotTransport:
        try:
            sock = _dial(offer)
        except PeerError:
            if offer.kind == "tcp":
                self._silent.add(offer.address)
            raise
        return _board(sock, offer, key, frame_bytes)


def _board(
    sock: socket.socket, offer: DirectOffer, key: SecretKey, frame_bytes: int
) -> SlotTransport:
    try:
        prove_to_host(sock, key, offer)
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
