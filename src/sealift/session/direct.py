"""Direct paths for cargo: how the two ends prove themselves, and the end that dials.

Inside the attested session the accelerator offers places to come to: a Unix socket on
its own machine, a TCP address. Whoever connects there must prove that it has a key
exported from that very session, and so must whoever listens; only then do frames cross,
the same frames as through the relay. All of it is an optimisation: whatever fails here,
the cargo goes through the relay. Layout in spec/visit.md. The end that listens is
``session/directhost.py``.

A holder dials nothing that it was not offered inside its attested session, and of what it
is offered only local sockets of Sealift's and addresses that its own settings name: an
accelerator learns nothing of what else can be reached from here, and of a dial that
failed it is told nothing. A place that nobody answered at is not tried again by this
process, so that an address behind a NAT costs its seconds once.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal

from sealift.channel.transport.memfd import MemfdTransport
from sealift.channel.transport.tcp import TcpTransport, connect_socket
from sealift.channel.transport.transport import (
    Deadline,
    SlotTransport,
    peer_closed,
    peer_timeout,
)
from sealift.channel.transport.unixsocket import dial_local
from sealift.crypto.hash import keyed_hash, verify_equal
from sealift.crypto.keys import SecretKey
from sealift.errors import (
    AuthenticationError,
    MalformedError,
    PeerError,
    SealiftError,
    require_value,
)

PROOF_S: Final = 3.0
DIAL_S: Final = 2.0
MAX_OFFERS: Final = 4
TOKEN_BYTES: Final = 16
MAGIC: Final = b"SEALDIR\x01"
_CHALLENGE_BYTES: Final = 32
_MAC_BYTES: Final = 32
_GREETING_BYTES: Final = len(MAGIC) + _CHALLENGE_BYTES
_ANSWER_BYTES: Final = TOKEN_BYTES + _CHALLENGE_BYTES + _MAC_BYTES

Kind = Literal["memfd", "tcp"]
PathName = Literal["relay", "memfd", "tcp"]
_NUMBER: Final[dict[Kind, int]] = {"memfd": 1, "tcp": 2}


@dataclass(frozen=True, slots=True)
class DirectOffer:
    """A place to come to, for one visit.

    Attributes:
        address: ``@NAME`` of an abstract Unix socket, or ``HOST:PORT``.
        token: Names the visit to whoever listens there; worth nothing without the key.
    """

    kind: Kind
    address: str
    token: bytes


class _End(IntEnum):
    DIALLER = 1
    HOST = 2


@dataclass(frozen=True, slots=True)
class _Exchange:
    """What both proofs are over; the key is the session's, exported for this lease."""

    kind: Kind
    token: bytes
    host: bytes
    dialler: bytes

    def proof(self, key: SecretKey, end: _End) -> bytes:
        head = bytes([end, _NUMBER[self.kind]])
        return keyed_hash(key, head, self.token, self.host, self.dialler)


def prove_to_host(sock: socket.socket, key: SecretKey, offer: DirectOffer) -> None:
    """The dialling end's side of the exchange, on a connected socket.

    Raises:
        AuthenticationError: if the other end does not have the key.
        MalformedError: if something else listens there.
        PeerError: if it says nothing in time.
    """
    deadline = Deadline(PROOF_S)
    greeting = _receive(sock, _GREETING_BYTES, deadline)
    if not greeting.startswith(MAGIC):
        raise MalformedError(
            "another process listens at that address", code="not-an-accelerator"
        )
    ours = secrets.token_bytes(_CHALLENGE_BYTES)
    exchange = _Exchange(offer.kind, offer.token, greeting[len(MAGIC) :], ours)
    proof = exchange.proof(key, _End.DIALLER)
    _send(sock, b"".join((offer.token, ours, proof)), deadline)
    theirs = _receive(sock, _MAC_BYTES, deadline)
    verify_equal(exchange.proof(key, _End.HOST), theirs)


def prove_to_dialler(
    sock: socket.socket,
    kind: Kind,
    find_key: Callable[[bytes], SecretKey | None],
    claim: Callable[[bytes], bool],
) -> bytes:
    """The listening end's side; returns the token of the visit whose holder connected.

    Args:
        sock: Somebody connected.
        kind: What was connected to.
        find_key: The key of the visit that a token names, if one waits.
        claim: Takes that place, once; False if it is taken.

    Raises:
        AuthenticationError: if it is a stranger; no place is taken then.
        PeerError: if it says nothing in time.
    """
    deadline = Deadline(PROOF_S)
    ours = secrets.token_bytes(_CHALLENGE_BYTES)
    _send(sock, MAGIC + ours, deadline)
    answer = _receive(sock, _ANSWER_BYTES, deadline)
    token, rest = answer[:TOKEN_BYTES], answer[TOKEN_BYTES:]
    theirs, proof = rest[:_CHALLENGE_BYTES], rest[_CHALLENGE_BYTES:]
    exchange = _Exchange(kind, token, ours, theirs)
    key = find_key(token)
    if key is None:
        raise AuthenticationError
    verify_equal(exchange.proof(key, _End.DIALLER), proof)
    mac = exchange.proof(key, _End.HOST)
    if not claim(token):
        raise AuthenticationError
    _send(sock, mac, deadline)
    return token


def _receive(sock: socket.socket, count: int, deadline: Deadline) -> bytes:
    """Exactly so many bytes, and not one more: what follows is the transport's."""
    received = b""
    while len(received) < count:
        try:
            _set_timeout(sock, deadline)
            part = sock.recv(count - len(received))
        except TimeoutError as error:
            raise peer_timeout() from error
        except OSError as error:
            raise peer_closed(error) from error
        if not part:
            raise peer_closed("the peer closed it")
        received += part
    return received


def _send(sock: socket.socket, message: bytes, deadline: Deadline) -> None:
    try:
        _set_timeout(sock, deadline)
        sock.sendall(message)
    except TimeoutError as error:
        raise peer_timeout() from error
    except OSError as error:
        raise peer_closed(error) from error


def _set_timeout(sock: socket.socket, deadline: Deadline) -> None:
    left_s = require_value(deadline.remaining_s())
    if left_s <= 0:
        raise TimeoutError
    sock.settimeout(left_s)


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
            "this machine allows none of the offered direct paths"
            if offers
            else "no direct path was offered"
        )
        for offer in offers[:MAX_OFFERS]:
            if not self._is_allowed(offer):
                continue
            if offer.address in self._silent:
                why = f"{offer.kind}: nobody answered earlier"
                continue
            try:
                transport = self._connect(offer, key, frame_bytes)
            except SealiftError as error:
                why = f"{offer.kind}: {error.what}"
            else:
                return Taken(offer.kind, "offered and proved", transport)
        return Taken("relay", why)

    def _is_allowed(self, offer: DirectOffer) -> bool:
        return self._local if offer.kind == "memfd" else offer.address in self._places

    def _connect(
        self, offer: DirectOffer, key: SecretKey, frame_bytes: int
    ) -> SlotTransport:
        try:
            sock = _dial(offer)
        except PeerError:
            if offer.kind == "tcp":
                self._silent.add(offer.address)
            raise
        return _prove(sock, offer, key, frame_bytes)


def _prove(
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
