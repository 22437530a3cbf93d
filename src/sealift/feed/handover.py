"""From a session over a Unix socket to a link in memory that its two ends share.

Inside the attested session the owner proposes (form, mode, size of records) and the device
consents or says why not. Each names its own process, and compares what the other one says
with what the kernel says of the socket: nobody stands in between, so the memory file,
which crosses the socket bare, gets into no third hand. Keys of both directions are
exported from the session, bound to proposal and consent; then the session is over, and
the socket is the memory's. Source: spec/link.md section 7.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from sealift.channel.link.announcement import LinkKeys, parse_mode
from sealift.channel.record.frames import FRAME_EXTRA_BYTES
from sealift.channel.record.layout import check_record_bytes
from sealift.channel.transport.memfd import (
    CONTROL_BYTES,
    SLOT_HEAD_BYTES,
    MemfdTransport,
)
from sealift.channel.transport.tcp import LENGTH_BYTES, TcpTransport
from sealift.channel.transport.unixsocket import peer_process
from sealift.codec import encode
from sealift.crypto.hash import labelled
from sealift.crypto.keys import Label
from sealift.errors import (
    MalformedError,
    PeerError,
    PolicyError,
    RefusedError,
    SealiftError,
)
from sealift.feed.form import BatchForm
from sealift.session.session import Session

VERSION: Final = 1
HANDSHAKE_S: Final = 10.0
MAX_SLOTS: Final = 64
_LEFT: Final = ("peer-closed", "peer-timeout", "session-closed", "session-truncated")
_BACK: Final = (256, 4)  # slots of what the device says: verdicts
_TO_DEVICE, _FROM_DEVICE = b"\x01", b"\x02"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Owner to device: what will cross, and how.

    Attributes:
        version: Of this exchange.
        mode: A link mode by its name.
        form: Of every batch.
        record_bytes: Plaintext of a record.
        process: The owner's, as its kernel numbers it.
    """

    version: int
    mode: str
    form: BatchForm
    record_bytes: int
    process: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedConsent:
    """Device to owner: yes, or why not.

    Attributes:
        slots: Records that may wait in the memory.
        process: The device's.
        refused: Stable name of a refusal; empty for consent.
        why: The refusal for people.
    """

    version: int
    slots: int
    process: int
    refused: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class FeedConnection:
    """A session and the socket that it goes over.

    Attributes:
        session: Established, the other end verified.
        transport: Of the session.
        sock: Of the transport.
    """

    session: Session
    transport: TcpTransport
    sock: socket.socket

    def require_peer(self, process: int) -> None:
        """Demand that who is at the other end of the socket is who is in the session.

        Raises:
            RefusedError: code ``somebody-between``.
        """
        seen = peer_process(self.sock)
        if not seen or process != seen:
            raise RefusedError(
                "the socket and the session lead to two different processes",
                why=(
                    f"the socket leads to process {seen or 'without a number'}, the "
                    f"session to process {process}"
                ),
                code="somebody-between",
            )

    def keys(self, proposal: Proposal, consent: FeedConsent) -> LinkKeys:
        """Keys of both directions, for exactly this proposal and this consent."""
        context = labelled(Label.LINK.value, encode(proposal), encode(consent))
        return LinkKeys(
            self.session.export(Label.LINK, _TO_DEVICE + context),
            self.session.export(Label.LINK, _FROM_DEVICE + context),
        )

    def leave_session(self) -> socket.socket:
        """End the session on this side; the socket stays.

        Raises:
            MalformedError: if the other end went on talking in the session.
        """
        sock, rest = self.transport.detach(b"")
        self.session.close()  # wipes; its transport says nothing any more
        if len(rest) != LENGTH_BYTES:
            sock.close()
            raise MalformedError(
                "an unexpected frame after the handover", code="bad-frame"
            )
        return sock

    def close(self) -> None:
        """End the session and the socket."""
        self.session.close()
        self.sock.close()


@contextmanager
def handshake_with(whom: str) -> Iterator[None]:
    """Say of somebody who is gone before there is a link what that means here."""
    try:
        yield
    except PeerError as error:
        if error.code not in _LEFT:
            raise
        raise PeerError(
            f"{whom} did not finish the handshake",
            why=error,
            fix="See the error that the other process printed",
            code=error.code,
        ) from None


def hand_over(
    connection: FeedConnection, proposal: Proposal, timeout_s: float
) -> FeedConsent:
    """The owner's side of the exchange; the device's consent.

    Raises:
        PolicyError: code ``link-refused``: the device does not take such batches.
        RefusedError: code ``somebody-between``.
        PeerError: if the device is gone.
    """
    session = connection.session
    session.send_message(proposal)
    consent = session.receive_message(FeedConsent, timeout_s)
    if consent.refused:
        raise PolicyError(
            "the device's process refused these batches",
            why=f"{consent.why[:300]} [{consent.refused[:64]}]",
            code="link-refused",
        )
    _require_version(consent.version)
    connection.require_peer(consent.process)
    if not 1 <= consent.slots <= MAX_SLOTS:
        raise MalformedError("the device's answer is malformed", field="slots")
    return consent


def take_over(
    connection: FeedConnection,
    form: BatchForm,
    slots: int,
    timeout_s: float,
) -> tuple[Proposal, FeedConsent]:
    """The device's side of the exchange; whatever it refuses, it says.

    Raises:
        PolicyError: ``form-differs`` or ``link-version``.
        RefusedError: code ``somebody-between``.
        PeerError: if the owner is gone, or did not want to go on.
    """
    session = connection.session
    try:
        proposal = session.receive_message(Proposal, timeout_s)
    except PeerError as error:
        raise PeerError(
            "the owner ended the session before it offered any batches",
            why=error,
            fix="The error that the owner's process printed says what it refused",
            code=error.code,
        ) from None
    ours = FeedConsent(version=VERSION, slots=slots, process=os.getpid())
    try:
        _require_version(proposal.version)
        connection.require_peer(proposal.process)
        parse_mode(proposal.mode)
        check_record_bytes(proposal.record_bytes)
        form.require_same(proposal.form)
    except SealiftError as error:
        said = FeedConsent(
            version=VERSION, slots=0, process=0, refused=error.code, why=str(error)
        )
        session.send_message(said)
        raise
    session.send_message(ours)
    return proposal, ours


def offer_memory(
    sock: socket.socket, proposal: Proposal, consent: FeedConsent, peer_uid: int | None
) -> MemfdTransport:
    """Make the memory file and hand it to the device."""
    slot_bytes, slots = _BACK
    return MemfdTransport.offer(
        sock,
        slot_bytes=slot_bytes,
        num_slots=slots,
        sending=(_slot_bytes(proposal), consent.slots),
        expected_uid=peer_uid,
    )


def take_memory(
    sock: socket.socket,
    proposal: Proposal,
    consent: FeedConsent,
    peer_uid: int | None,
    timeout_s: float,
) -> MemfdTransport:
    """Take the owner's memory file, if it is not larger than was agreed."""
    slots = consent.slots + _BACK[1]
    largest = _slot_bytes(proposal) + SLOT_HEAD_BYTES + 64
    return MemfdTransport.accept(
        sock,
        expected_uid=peer_uid,
        timeout_s=timeout_s,
        max_bytes=CONTROL_BYTES + slots * largest,
    )


def _slot_bytes(proposal: Proposal) -> int:
    return proposal.record_bytes + FRAME_EXTRA_BYTES


def _require_version(found: int) -> None:
    if found != VERSION:
        raise PolicyError(
            "the other end of the link has another protocol version",
            why=f"it has version {found}; this end has version {VERSION}",
            code="link-version",
        )
