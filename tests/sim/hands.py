"""What a holder does in a visit: the honest one, and one that can do anything.

A `Hand` has what an evil holder has: the session, the lease, its sealed file, and the
visit key. It builds any frame that it likes, with a valid MAC.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from sealift.crypto.keys import TOKEN, Label, SecretKey
from sealift.demo.holders import build_frame
from sealift.errors import PeerError
from sealift.ids import Buffer, Handle
from sealift.release.receipt import SignedReceipt
from sealift.session.session import Session
from sealift.travel.holder.visit import HeldResource, Provisioning
from sealift.travel.visit.lease import (
    Lease,
    SignedLease,
    placement,
    record_range,
)
from sealift.travel.visit.messages import (
    LEAVES_PER_MESSAGE,
    Cargo,
    Credit,
    Failed,
    Leaves,
    PathTaken,
    Present,
    Ready,
    Receipted,
    VisitPhase,
    parse_message,
    receive_message,
    send_message,
)
from tests.sim.visit_parts import FakeClock

WAIT_S = 300.0


class Hand:
    """A holder in one visit, free to misbehave."""

    def __init__(
        self,
        held: HeldResource,
        signed: SignedLease,
        *,
        session: Session,
        clock: FakeClock,
        stalled: threading.Event,
    ) -> None:
        self.held, self.signed, self.session = held, signed, session
        self.lease: Lease = signed.body
        self.clock = clock
        self.stalled = stalled
        self.window = 0
        self.sent = 0
        self._acknowledged = 0

    @property
    def record_bytes(self) -> int:
        return self.held.resource.record_bytes

    @property
    def total(self) -> int:
        """Frames that the lease takes."""
        return len(record_range(self.lease, self.record_bytes))

    def visit_key(self) -> SecretKey:
        return self.session.export(Label.VISIT_FRAME, self.lease.digest.raw)

    def secrets(self) -> dict[str, SecretKey]:
        """Everything secret that a holder has in a visit."""
        established = self.session.established
        return {
            "visit": self.visit_key(),
            "send": established.send_key(),
            "receive": established.receive_key(),
            "master": SecretKey.from_bytes(established.keys._master.reveal(TOKEN)),
        }

    def present(self, **changes: Any) -> None:
        """First words: lease, header, leaves."""
        leaves = self.held.leaves
        header = self.held.source.header_bytes
        first = Present(self.signed, header, len(leaves))
        send_message(self.session, replace(first, **changes))
        for start in range(0, len(leaves), LEAVES_PER_MESSAGE):
            part = b"".join(leaves[start : start + LEAVES_PER_MESSAGE])
            send_message(self.session, Leaves(part))

    def introduce(self, **changes: Any) -> None:
        """First words, the accelerator's consent, and which way the frames go."""
        self.present(**changes)
        self.ready = receive_message(self.session, Ready, timeout_s=WAIT_S)
        self.window = self.ready.window
        send_message(self.session, PathTaken("relay"))

    def frame(
        self,
        sequence: int,
        *,
        source: int | None = None,
        bytes_: Buffer | None = None,
        key: SecretKey | None = None,
        handle: Handle | None = None,
        **changes: Any,
    ) -> bytes:
        """Frame number `sequence`, or whatever is made of it, with a valid MAC.

        `source` is the record whose sealed bytes it carries, `bytes_` are such bytes
        from elsewhere, `key` makes the MAC, `changes` are fields of its placement.
        """
        place = placement(self.lease, sequence, self.record_bytes)
        if bytes_ is None:
            number = place.record if source is None else source
            bytes_ = self.held.source.record(number)
        changed = replace(place, **changes)
        key = key or self.visit_key()
        return build_frame(key, self.lease, changed, bytes_, handle)

    def frames(self) -> list[bytes]:
        """What an honest holder sends."""
        return [self.frame(sequence) for sequence in range(self.total)]

    def send(self, frames: Iterable[bytes]) -> None:
        """Send frames, at most a window ahead of what was acknowledged."""
        for frame in frames:
            while self.sent - self._acknowledged >= self.window:
                self._read(Credit)
            self.session.send_raw(frame)
            self.sent += 1

    def finish(self, frames: int | None = None, **changes: Any) -> SignedReceipt:
        """Say that it was all, and take the receipt."""
        count = self.sent if frames is None else frames
        told = Cargo(count, self.lease.cargo_bytes)
        send_message(self.session, replace(told, **changes))
        answer = self._read(Receipted)
        assert isinstance(answer, Receipted)
        return answer.receipt

    def _read(self, wanted: type) -> object:
        """The next message of this kind; credit and progress on the way are noted."""
        while True:
            raw = self.session.receive(WAIT_S)
            told = parse_message(raw, (Credit, Receipted, VisitPhase, Failed))
            if isinstance(told, Credit):
                self._acknowledged = told.frames
            if isinstance(told, Failed):
                raise PeerError(told.line, code=told.code)
            if isinstance(told, wanted):
                return told

    def stall(self) -> None:
        """Say nothing more, for ever."""
        self.stalled.set()


Bring = Callable[[Hand], SignedReceipt | None]


def honest(hand: Hand) -> SignedReceipt:
    """The real holder."""
    provisioning = Provisioning(
        hand.held,
        hand.signed,
        clock=hand.clock,
        check_heads=lambda heads: None,
        require_allowed=lambda: None,
    )
    return provisioning.provision(hand.session)


def sending(make_frames: Callable[[Hand], Iterable[bytes]]) -> Bring:
    """A holder that sends these frames and claims that all is well."""

    def bring(hand: Hand) -> SignedReceipt:
        hand.introduce()
        hand.send(make_frames(hand))
        return hand.finish(hand.total)

    return bring
