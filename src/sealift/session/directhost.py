"""The listening end of direct paths.

One host serves a process. A visit asks it for a single-use place with a token and a
key; threads of the host greet whoever connects, and only a holder that proves the
place's key gets in (``session/direct.py``). Strangers cost a few seconds of one of a few
threads, those of one address not all of them, and keep nobody from the relay.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from sealift.channel.transport.memfd import MemfdTransport
from sealift.channel.transport.tcp import TcpListener, TcpTransport, peer_host
from sealift.channel.transport.transport import Deadline, SlotTransport
from sealift.channel.transport.unixsocket import LocalListener
from sealift.crypto.keys import SecretKey
from sealift.errors import PeerError, SealiftError
from sealift.events import Sink, discard, emit
from sealift.session.direct import TOKEN_BYTES, DirectOffer, Kind, prove_to_dialler

MAX_UNPROVEN: Final = 8  # connections that may be proving themselves at one time
MAX_UNPROVEN_EACH: Final = 4  # of them from one address
RING_BYTES: Final = 4 << 20  # stays in the cache of both ends
WORD_SLOTS: Final = (1 << 10, 1)  # cargo goes one way; every page takes time to make
_ACCEPT_PAUSE_S: Final = 0.05


class DirectPlace:
    """One visit's place; made by ``DirectHost.offer``, given back by ``close``."""

    def __init__(
        self, key: SecretKey, frame_bytes: int, *, both_ways: bool = False
    ) -> None:
        self.token = secrets.token_bytes(TOKEN_BYTES)
        self.sending = None if both_ways else WORD_SLOTS
        self.key = key
        self.frame_bytes = frame_bytes
        self.offers: tuple[DirectOffer, ...] = ()
        self._changed = threading.Condition()
        self._claimed = self._closed = False
        self._transport: SlotTransport | None = None

    def claim(self) -> bool:
        """Take the place; True for the first."""
        with self._changed:
            first = not self._claimed and not self._closed
            self._claimed = True
            return first

    def connect(self, transport: SlotTransport) -> None:
        """The holder is connected."""
        with self._changed:
            if not self._closed:
                self._transport = transport
                self._changed.notify_all()
                return
        transport.close()

    def transport(self, timeout_s: float) -> SlotTransport:
        """The holder's connection; the place closes it.

        Raises:
            PeerError: if the holder does not connect in time.
        """
        deadline = Deadline(timeout_s)
        with self._changed:
            while self._transport is None:
                left_s = deadline.remaining_s()
                if self._closed or left_s == 0:
                    raise PeerError("the holder did not use the direct connection")
                self._changed.wait(left_s)
            return self._transport

    def hand_over(self, timeout_s: float) -> SlotTransport:
        """The connection, which is the caller's from now on; see ``transport``."""
        transport = self.transport(timeout_s)
        with self._changed:
            self._transport = None
        return transport

    def close(self) -> None:
        """End the connection and forget the key. Idempotent."""
        with self._changed:
            self._closed = True
            transport, self._transport = self._transport, None
            self._changed.notify_all()
        if transport is not None:
            transport.close()
        self.key.wipe()


class DirectHost:
    """Listens for holders.

    Args:
        local: Unix socket for holders on this machine, if there are to be any.
        tcp: For holders that can reach this machine.
        tcp_address: What holders are told to dial, if not what ``tcp`` listens on.
        sink: Gets ``direct.refused``.
    """

    def __init__(
        self,
        *,
        local: LocalListener | None = None,
        tcp: TcpListener | None = None,
        tcp_address: str = "",
        sink: Sink = discard,
    ) -> None:
        self._local, self._tcp, self._sink = local, tcp, sink
        self._lock = threading.Lock()
        self._places: dict[bytes, DirectPlace] = {}
        self._addresses: dict[Kind, str] = {}
        self._unproven: Counter[str] = Counter()  # by address, from the accept on
        self._closing = threading.Event()
        if local is not None:
            self._open("memfd", local.name, local.accept)
        if tcp is not None:
            address = tcp_address or "{}:{}".format(*tcp.address)
            self._open("tcp", address, tcp.accept_socket)

    def offer(
        self, key: SecretKey, frame_bytes: int, *, both_ways: bool = False
    ) -> DirectPlace:
        """A place for one visit.

        Args:
            key: Exported from the visit's session; the place wipes it.
            frame_bytes: Longest frame.
            both_ways: Whether as much goes out as comes in; else words alone go out.
        """
        place = DirectPlace(key, frame_bytes, both_ways=both_ways)
        with self._lock:
            addresses = self._addresses.items()
            place.offers = tuple(
                DirectOffer(kind, address, place.token) for kind, address in addresses
            )
            self._places[place.token] = place
        return place

    def withdraw(self, place: DirectPlace) -> None:
        """The visit is over: nobody can come to this place any more."""
        with self._lock:
            self._places.pop(place.token, None)
        place.close()

    def close(self) -> None:
        """Stop listening and close every place. Idempotent."""
        self._closing.set()
        for listener in (self._local, self._tcp):
            if listener is not None:
                listener.close()
        with self._lock:
            places = list(self._places.values())
            self._places.clear()
        for place in places:
            place.close()

    def _open(
        self, kind: Kind, address: str, accept: Callable[[], socket.socket]
    ) -> None:
        self._addresses[kind] = address
        threading.Thread(
            target=self._accept, args=(kind, accept), name=f"direct {kind}", daemon=True
        ).start()

    def _accept(self, kind: Kind, accept: Callable[[], socket.socket]) -> None:
        while not self._closing.is_set():
            try:
                sock = accept()
            except SealiftError:  # closed, another user, or no descriptor is left
                self._closing.wait(_ACCEPT_PAUSE_S)
                continue
            address = peer_host(sock)
            if not self._take_place(address):
                sock.close()
                continue
            threading.Thread(
                target=self._greet,
                args=(kind, sock, address),
                name="direct greeting",
                daemon=True,
            ).start()

    def _take_place(self, address: str) -> bool:
        with self._lock:
            full = self._unproven.total() >= MAX_UNPROVEN
            if full or self._unproven[address] >= MAX_UNPROVEN_EACH:
                return False
            self._unproven[address] += 1
            return True

    def _greet(self, kind: Kind, sock: socket.socket, address: str) -> None:
        try:
            token = prove_to_dialler(sock, kind, self._key, self._claim)
            place = self._find(token)
            if place is None:
                raise PeerError("the visit has ended")
            place.connect(_transport(kind, sock, place))
        except SealiftError as error:
            with suppress(OSError):
                sock.close()
            emit(self._sink, "direct.refused", path=kind, reason=error.code)
        finally:
            with self._lock:
                self._unproven[address] -= 1
                self._unproven += Counter()  # forget addresses without any

    def _find(self, token: bytes) -> DirectPlace | None:
        with self._lock:
            return self._places.get(token)

    def _key(self, token: bytes) -> SecretKey | None:
        place = self._find(token)
        return place.key if place is not None else None

    def _claim(self, token: bytes) -> bool:
        place = self._find(token)
        return place is not None and place.claim()


def _transport(kind: Kind, sock: socket.socket, place: DirectPlace) -> SlotTransport:
    if kind == "memfd":
        return MemfdTransport.offer(
            sock,
            slot_bytes=place.frame_bytes,
            num_slots=max(3, RING_BYTES // place.frame_bytes),
            sending=place.sending,
        )
    return TcpTransport(sock, max_frame_bytes=place.frame_bytes)
