"""Run the handshake over a transport: ``connect`` speaks first, ``accept`` answers.

A refusal is told to the other end by its stable name, so that both screens say why.
The transport is closed when the handshake fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from sealift.channel.transport.transport import Deadline, Transport
from sealift.errors import MalformedError, PeerError, SealiftError
from sealift.session.endpoint import Endpoint, PeerPolicy
from sealift.session.frames import FrameKind, pack, pack_abort, raise_abort, unpack
from sealift.session.handshake import Initiator, Responder
from sealift.session.session import Session

HANDSHAKE_TIMEOUT_S: Final = 10.0


def connect(
    transport: Transport,
    endpoint: Endpoint,
    policy: PeerPolicy,
    timeout_s: float = HANDSHAKE_TIMEOUT_S,
) -> Session:
    """Open a session as the initiator.

    Raises:
        RefusedError: the peer is not who or what ``policy`` demands.
        PeerError: it refused us (``peer-refused``), is gone, or did not answer in time.
        MalformedError: it does not speak this protocol.
    """
    deadline = Deadline(timeout_s)
    with _abort_on_error(transport):
        initiator = Initiator(endpoint, policy)
        _send(transport, initiator.hello())
        _send(transport, initiator.answer(_receive(transport, deadline)))
        established = initiator.finish(_receive(transport, deadline))
        return Session(transport, established, endpoint=endpoint, policy=policy)


def accept(
    transport: Transport,
    endpoint: Endpoint,
    policy: PeerPolicy,
    timeout_s: float = HANDSHAKE_TIMEOUT_S,
) -> Session:
    """Open a session as the responder; raises like ``connect``."""
    deadline = Deadline(timeout_s)
    with _abort_on_error(transport):
        responder = Responder(endpoint, policy)
        _send(transport, responder.reply(_receive(transport, deadline)))
        done, established = responder.finish(_receive(transport, deadline))
        _send(transport, done)
        return Session(transport, established, endpoint=endpoint, policy=policy)


def _send(transport: Transport, message: bytes) -> None:
    transport.send(pack(FrameKind.HANDSHAKE, message))


def _receive(transport: Transport, deadline: Deadline) -> bytes:
    kind, payload = unpack(transport.receive(deadline.remaining_s()))
    if kind is FrameKind.ABORT:
        raise_abort(payload)
    if kind is not FrameKind.HANDSHAKE:
        raise MalformedError("expected a handshake message", code="bad-frame")
    return payload


@contextmanager
def _abort_on_error(transport: Transport) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        if isinstance(error, SealiftError) and not isinstance(error, PeerError):
            with suppress(SealiftError):
                transport.send(pack_abort(error))
        transport.close()
        raise
