"""The last words of an orchestrator: that the job has ended, and the receipt of its run."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from sealift.errors import MalformedError, SealiftError
from sealift.session.session import Session
from sealift.travel.visit.messages import (
    FAREWELL_S,
    PART_BYTES,
    RUN_RECEIPT_NAME,
    Finished,
    Output,
    receive_message,
    send_message,
)


def send_finished(session: Session, finished: Finished, receipt: bytes = b"") -> None:
    """Say that the job has ended, and hand out the run's receipt."""
    send_message(session, replace(finished, receipt_bytes=len(receipt)))
    for start in range(0, len(receipt), PART_BYTES):
        part = receipt[start : start + PART_BYTES]
        last = start + PART_BYTES >= len(receipt)
        send_message(session, Output(RUN_RECEIPT_NAME, part, last))


def receive_receipt(session: Session, finished: Finished, timeout_s: float) -> bytes:
    """The receipt that follows an orchestrator's last word; empty if there is none.

    Raises:
        PeerError: if it breaks off.
        MalformedError: if something else comes.
    """
    receipt = bytearray()
    while len(receipt) < finished.receipt_bytes:
        piece = receive_message(session, Output, timeout_s=timeout_s)
        receipt += piece.part
        if len(receipt) > finished.receipt_bytes:
            raise MalformedError(
                "the receipt is longer than announced", code="bad-message"
            )
        if piece.name != RUN_RECEIPT_NAME or not piece.part:
            raise MalformedError(
                "the message is not the run's receipt", code="bad-message"
            )
    return bytes(receipt)


def await_end(session: Session, timeout_s: float = FAREWELL_S) -> None:
    """Wait until the peer has closed its end, so it has heard what was said before."""
    with suppress(SealiftError):
        session.receive(timeout_s)
