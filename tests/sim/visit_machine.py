"""A state machine over the accelerator's side of a visit (hypothesis).

It drives the real parts: state, frames, opener, leaves, pool and scrub. Right and wrong
leases and frames, ends, trainings, revocations and time come in any order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from sealift.channel.record.opener import RecordOpener
from sealift.crypto.keys import SecretKey
from sealift.crypto.sign import SigningKey
from sealift.demo.holders import build_frame
from sealift.errors import SealiftError
from sealift.ids import Digest, Handle, VisitId
from sealift.travel.accelerator.setup import ReleasedResource
from sealift.travel.accelerator.visit import CargoLoader, CargoRows
from sealift.travel.visit.lease import Lease, placement
from sealift.travel.visit.memory import scrub
from sealift.travel.visit.state import Visit, VisitState
from tests.sim.sealed_rows import (
    DATA_KEY,
    PLAIN,
    RECORD_BYTES,
    ROW_BYTES,
    ROWS,
    source,
)
from tests.sim.visit_parts import FakeClock, GuardedPool
from tests.worlds.consortium import RUN

LEASE_S = 30.0
VISIT_KEY = SecretKey.generate()
INSTANCE = SigningKey.generate().public_key
FAULTS = (
    "repeat", "skip", "offset", "length", "handle", "key", "bytes", "flip", "cut", "far",
)  # fmt: skip


class VisitMachine(RuleBasedStateMachine):
    """One visit."""

    make_visit: Any = Visit
    starts_leased = False

    @initialize(first=st.integers(0, ROWS - 1), rows=st.integers(1, ROWS))
    def offer(self, first: int, rows: int) -> None:
        self.first, self.rows = first, min(rows, ROWS - first)
        start = self.first * ROW_BYTES
        self.cargo = PLAIN[start : start + self.rows * ROW_BYTES]
        self.clock = FakeClock()
        self.pool = GuardedPool(len(self.cargo), RECORD_BYTES)
        self.visit = self.make_visit(
            VisitId.generate(), self.pool.handle, len(self.cargo), clock=self.clock
        )
        self.loader = CargoLoader(
            self.visit,
            ReleasedResource(None, DATA_KEY),  # type: ignore[arg-type]
            self.pool,
            None,
        )
        opener = RecordOpener(DATA_KEY, source().header)
        self.opened = CargoRows(opener, source().leaves, self.pool, hashing_threads=0)
        self.lease = self.make_lease()
        self.placed = self.taken = self.trainings = 0
        self.deadline: float | None = None
        if self.starts_leased:
            self.accept({})

    def make_lease(self) -> Lease:
        return Lease(
            job="job",
            visit=self.visit.visit,
            agreement=Digest.of(b"agreement"),
            accelerator=INSTANCE,
            holder="ada",
            resource="ada-train",
            purpose="train",
            handle=self.pool.handle,
            offset=0,
            max_bytes=len(self.cargo),
            dtype="uint8",
            shape=(self.rows, ROW_BYTES),
            first_row=self.first,
            mode="write-only",
            lease_s=LEASE_S,
            content=Digest.of(b"content"),
            run=RUN,
        )

    def attempt(self, allowed: bool, call: Any, *arguments: Any) -> Any:
        """It works when it may; otherwise it is refused and the state stays."""
        state = self.visit.state
        if allowed:
            return call(*arguments)
        with pytest.raises(SealiftError):
            call(*arguments)
        assert self.visit.state is state
        return None

    @property
    def alive(self) -> bool:
        return self.deadline is None or self.clock() < self.deadline

    @rule(
        change=st.sampled_from(
            [{}, {}, {}, {"max_bytes": 10**6}, {"offset": 1}, {"handle": None}]
        )
    )
    def accept(self, change: dict[str, Any]) -> None:
        if "handle" in change:
            change = {"handle": Handle.generate()}
        allowed = self.visit.state is VisitState.OFFERED and not change
        changed = replace(self.lease, **change)
        self.attempt(allowed, self.visit.accept, changed, RECORD_BYTES)
        if allowed:
            self.deadline = self.clock() + LEASE_S

    def frame(self, number: int, fault: str) -> bytes:
        """The frame with this number, spoilt."""
        place = placement(self.lease, number, RECORD_BYTES)
        handle = Handle.generate() if fault == "handle" else self.pool.handle
        key = SecretKey.generate() if fault == "key" else VISIT_KEY
        index = (place.record + (fault == "bytes")) % len(source().records)
        changes = {
            "offset": {"offset": place.offset + 8},
            "length": {"length": place.length + 1},
            "far": {"offset": len(self.cargo), "sequence": place.sequence},
        }
        place = replace(place, **changes.get(fault, {}))
        record = source().records[index]
        raw = bytearray(build_frame(key, self.lease, place, record, handle))
        if fault == "flip":
            raw[len(raw) // 2] ^= 1
        return bytes(raw[: len(raw) - 1] if fault == "cut" else raw)

    @precondition(lambda self: self.deadline is not None)
    @rule(fault=st.sampled_from(("", "", "", "", "", "", *FAULTS)))
    def send(self, fault: str) -> None:
        total = self.visit.expected_frames
        step = {"repeat": -1, "skip": 1}.get(fault, 0)
        number = (self.taken + step) % total
        in_turn = self.taken < total and number == self.taken
        leased = self.visit.state is VisitState.LEASED and self.alive
        harmless = fault in ("", "repeat", "skip")  # a lease of one frame wraps around
        if fault == "bytes" and len(source().records) == 1:
            harmless = True
        allowed = leased and in_turn and harmless
        raw = self.frame(number, fault)
        place = (memoryview(raw), VISIT_KEY, self.opened)
        self.attempt(allowed, self.loader._place, *place)
        if allowed:
            self.taken += 1
            self.placed += placement(self.lease, number, RECORD_BYTES).length
        elif self.visit.state is VisitState.LEASED:
            self.revoke()  # whoever drives the visit does so at the first refusal

    @precondition(lambda self: self.deadline is not None)
    @rule(lie=st.sampled_from([0, 0, 0, 1, -1]))
    def seal(self, lie: int) -> None:
        complete = self.taken == self.visit.expected_frames
        allowed = self.visit.state is VisitState.LEASED and complete and not lie
        told = (self.taken + lie, len(self.cargo))
        self.attempt(allowed, self.visit.seal, *told)

    @precondition(lambda self: self.visit.state is VisitState.LEASED)
    @rule()
    def bring_the_rest(self) -> None:
        while (
            self.visit.state is VisitState.LEASED
            and self.taken < self.visit.expected_frames
        ):
            self.send("")
        self.seal(0)

    @rule()
    def train(self) -> None:
        allowed = self.visit.state is VisitState.SEALED
        self.attempt(allowed, self.visit.begin_training)
        if allowed:
            self.trainings += 1
            assert bytes(self.pool.buffer) == self.cargo

    @rule()
    def finish(self) -> None:
        allowed = self.visit.state is VisitState.TRAINING
        self.attempt(allowed, self.visit.begin_scrub)
        if allowed:
            self.end()
            assert self.visit.state is VisitState.VERIFIED

    @rule()
    def end_without_scrub(self) -> None:
        self.attempt(False, self.visit.end)

    @rule(seconds=st.sampled_from([1.0, LEASE_S / 2, LEASE_S]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(chance=st.integers(0, 4))
    def give_up(self, chance: int) -> None:
        if chance == 0:
            self.revoke()

    def revoke(self) -> None:
        ended = self.visit.state in (VisitState.VERIFIED, VisitState.FAILED)
        self.attempt(not ended, self.visit.revoke, "test")
        if not ended:
            self.end()
            assert self.visit.state is VisitState.FAILED

    def end(self) -> None:
        scrub(self.pool.regions())
        self.visit.end()
        self.placed = 0

    @invariant()
    def plaintext_is_where_it_may_be(self) -> None:
        assert self.pool.intact
        assert not any(self.pool.quarantine)
        buffer = bytes(self.pool.buffer)
        assert buffer[: self.placed] == self.cargo[: self.placed]
        assert not any(buffer[self.placed :])

    @invariant()
    def it_trains_once_at_most(self) -> None:
        assert self.trainings <= 1
        if self.visit.state is VisitState.TRAINING:
            assert bytes(self.pool.buffer) == self.cargo

    def teardown(self) -> None:
        self.opened.close()
