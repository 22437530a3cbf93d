"""The visit as a state machine: what may happen when, and nothing else (spec/visit.md).

::

    offered -> leased -> sealed -> training -> scrubbing -> verified
    any but the last two -- revoke --> scrubbing -> failed

Pure: the clock is an argument, no memory is touched, no key is used. A frame that is
not exactly the next one of the lease raises; whoever drives the machine then revokes.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from sealift.errors import IntegrityError, PolicyError, StaleError
from sealift.ids import Handle, VisitId
from sealift.travel.visit.lease import (
    Frame,
    Lease,
    RecordTarget,
    placement,
    record_range,
)

Clock = Callable[[], float]


class VisitState(StrEnum):
    """Where a visit stands."""

    OFFERED = "offered"
    LEASED = "leased"
    SEALED = "sealed"
    TRAINING = "training"
    SCRUBBING = "scrubbing"
    VERIFIED = "verified"
    FAILED = "failed"


class Visit:
    """One visit.

    Args:
        visit: Its id; the caller refuses an id that it has seen before.
        handle: Names the buffer that is offered.
        buffer_bytes: Length of that buffer.
        clock: Seconds that also count while the machine sleeps.
    """

    def __init__(
        self, visit: VisitId, handle: Handle, buffer_bytes: int, *, clock: Clock
    ) -> None:
        self.visit = visit
        self.handle = handle
        self.buffer_bytes = buffer_bytes
        self.state = VisitState.OFFERED
        self.revoked_for = ""
        self._clock = clock
        self._lease: Lease | None = None
        self._record_bytes = 0
        self._next = 0
        self._deadline = 0.0

    @property
    def lease(self) -> Lease:
        """The accepted lease."""
        if self._lease is None:
            raise PolicyError("this visit has no lease", code="no-lease")
        return self._lease

    def accept(self, lease: Lease, record_bytes: int) -> None:
        """Take a verified lease; its seconds count from now.

        Raises:
            PolicyError: if it does not fit the offer.
        """
        self._require(VisitState.OFFERED, "take a lease")
        if lease.visit != self.visit or lease.handle != self.handle:
            raise PolicyError(
                "the lease belongs to another buffer", code="foreign-lease"
            )
        if lease.offset + lease.max_bytes > self.buffer_bytes:
            raise PolicyError(
                "the lease is larger than the buffer", code="lease-too-long"
            )
        self._lease, self._record_bytes = lease, record_bytes
        self._deadline = self._clock() + lease.lease_s
        self.state = VisitState.LEASED

    def remaining_s(self) -> float:
        """Seconds left in the lease.

        Raises:
            StaleError: if none are.
        """
        left = self._deadline - self._clock()
        if left <= 0:
            raise StaleError("the lease has expired", code="lease-expired")
        return left

    def admit(self, frame: Frame) -> RecordTarget:
        """Check that an authenticated frame is exactly the next one of the lease.

        Raises:
            StaleError: for a replay, a gap, another order or an expired lease.
            PolicyError: for another buffer or a place outside the lease.
        """
        self._require(VisitState.LEASED, "take a frame")
        self.remaining_s()
        if frame.sequence != self._next or self._next >= self.expected_frames:
            raise StaleError(
                "a frame came twice, late or out of order",
                why=f"it has number {frame.sequence}; number {self._next} was expected",
                code="frame-order",
            )
        place = placement(self.lease, self._next, self._record_bytes)
        self._check_place(frame, place)
        self._next += 1
        return place

    @property
    def expected_frames(self) -> int:
        """How many frames the lease takes."""
        return len(record_range(self.lease, self._record_bytes))

    def seal(self, frames: int, cargo_bytes: int) -> None:
        """The cargo is complete; no more frames.

        Raises:
            IntegrityError: if the holder or we count otherwise.
        """
        self._require(VisitState.LEASED, "seal the cargo")
        told = (frames, cargo_bytes)
        if self._next != self.expected_frames or told != (
            self._next,
            self.lease.cargo_bytes,
        ):
            raise IntegrityError(
                "the rows are not complete",
                why=f"{self._next} of {self.expected_frames} frames arrived",
                code="cargo-truncated",
            )
        self.state = VisitState.SEALED

    def begin_training(self) -> None:
        """From here on the recipe sees the buffer."""
        self._require(VisitState.SEALED, "train")
        self.state = VisitState.TRAINING

    def begin_scrub(self) -> None:
        """The recipe is done; the pool is being overwritten."""
        self._require(VisitState.TRAINING, "scrub")
        self.state = VisitState.SCRUBBING

    def revoke(self, reason: str) -> None:
        """End the visit from any state that has not ended; what follows is a scrub."""
        if self.state in (VisitState.VERIFIED, VisitState.FAILED):
            raise StaleError("this visit has already ended", code="visit-ended")
        self.revoked_for = self.revoked_for or reason
        self.state = VisitState.SCRUBBING

    def end(self) -> VisitState:
        """The scrub was read back; the visit is verified, or failed if revoked."""
        self._require(VisitState.SCRUBBING, "end")
        self.state = VisitState.FAILED if self.revoked_for else VisitState.VERIFIED
        return self.state

    def _check_place(self, frame: Frame, place: RecordTarget) -> None:
        if frame.handle != self.handle:
            raise PolicyError(
                "a frame belongs to another buffer", code="foreign-buffer"
            )
        told = (frame.record_index, frame.offset, frame.length)
        if told != (place.record, place.offset, place.length):
            raise PolicyError(
                "a frame is outside its lease",
                why=f"it has {frame.length} bytes at offset {frame.offset}",
                code="outside-lease",
            )

    def _require(self, state: VisitState, verb: str) -> None:
        if self.state is not state:
            raise StaleError(
                f"it is not possible to {verb} now",
                why=f"the visit is {self.state}",
                code="visit-state",
            )
