"""Direct paths for cargo: who may connect, and how the two ends prove themselves.

Inside the attested session the accelerator offers places to come to: a Unix socket on
its own machine, a TCP address. Whoever connects there must prove that it has a key
exported from that very session, and so must whoever listens; only then do frames cross,
the same frames as through the relay. All of it is an optimisation: whatever fails here,
the cargo goes through the relay. Layout in spec/visit.md.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal

from sealift.channel.transport.transport import Deadline, peer_closed, peer_timeout
from sealift.crypto.hash import keyed_hash, verify_equal
from sealift.crypto.keys import SecretKey
from sealift.errors import AuthenticationError, MalformedError

PROOF_S: Final = 3.0
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
        raise MalformedError("something else listens there", code="not-an-accelerator")
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
            raise peer_closed("the peer ended it")
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
    left_s = deadline.remaining_s()
    assert left_s is not None
    if left_s <= 0:
        raise TimeoutError
    sock.settimeout(left_s)
