"""A relay that does what it likes with a group: it can end it, and nothing else.

Three ranks whose pipes all go through the relay; what rank 1 sends it is changed on the
way, or circuits are led astray between two starts of the group.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from sealift.attest.development import DevelopmentAttester
from sealift.attest.evidence import Evidence
from sealift.errors import PeerError, RefusedError, SealiftError
from sealift.ids import Role
from sealift.session.relay.client import RelayClient
from sealift.session.relay.envelope import CIRCUIT_BYTES, HEAD_BYTES, EnvelopeKind
from tests.sim.attested import BUNDLE
from tests.sim.meetings import NAMES, Ranks, codes, on_all, sums
from tests.sim.pipes import Change

SUMS = [6.0, 6.0, 6.0]
ID = slice(2, 2 + CIRCUIT_BYTES)


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    with ExitStack() as stack:
        found = Ranks(stack, "relay")
        found.timeout_s = 1.0  # for who waits in vain
        yield found


class Frames:
    """Numbers the frames of circuits that pass, and changes one.

    Attributes:
        seen: What passed.
    """

    def __init__(self, at: int = -1, change: Change | None = None) -> None:
        self.at, self.change = at, change
        self.seen: list[bytes] = []
        self.held: list[bytes] = []

    def __call__(self, number: int, envelope: bytes) -> list[bytes]:
        if envelope[1] != EnvelopeKind.FRAME:
            return [envelope]
        self.seen.append(envelope)
        if self.change is not None and len(self.seen) - 1 == self.at:
            return list(self.change(self.at, envelope))
        return [envelope, *self.held]


def meet(ranks: Ranks, frames: Frames) -> list[Any]:
    relay = ranks.dial(NAMES[1], frames)
    meetings = [
        ranks.meeting(rank, relay=relay if rank == 1 else None) for rank in range(3)
    ]
    return on_all(meetings, sums)


def flip(number: int, envelope: bytes) -> list[bytes]:
    return [envelope[:-20] + bytes([envelope[-20] ^ 1]) + envelope[-19:]]


def drop(number: int, envelope: bytes) -> list[bytes]:
    return []


def twice(number: int, envelope: bytes) -> list[bytes]:
    return [envelope, envelope]


# Of those that rank 1 sends: of handshakes, words, hellos and tensors.
PLACES = (0, 3, 7, 11, 17)


def test_unharmed_the_sums_are_there(ranks: Ranks) -> None:
    frames, ranks.timeout_s = Frames(), 20.0
    assert meet(ranks, frames) == [SUMS] * 3
    assert len(frames.seen) > max(PLACES), len(frames.seen)


@pytest.mark.parametrize("at", PLACES)
@pytest.mark.parametrize("change", [flip, drop, twice])
def test_whatever_a_relay_changes_nobody_gets_a_wrong_sum(
    ranks: Ranks, change: Change, at: int
) -> None:
    found = meet(ranks, Frames(at, change))
    assert any(isinstance(each, RefusedError | PeerError) for each in found)
    for each in found:
        assert isinstance(each, SealiftError) or each == SUMS


@pytest.mark.parametrize("at", PLACES)
def test_frames_of_a_former_start_fit_nowhere(ranks: Ranks, at: int) -> None:
    former = Frames()
    with ExitStack() as stack:
        before = Ranks(stack, "relay")
        before.cast = ranks.cast
        assert meet(before, former) == [SUMS] * 3

    def replayed(number: int, envelope: bytes) -> list[bytes]:
        circuit = envelope[ID]
        return [
            former.seen[number][:2] + circuit + former.seen[number][HEAD_BYTES - 1 :]
        ]

    found = meet(ranks, Frames(at, replayed))
    assert any(isinstance(each, SealiftError) for each in found)
    for each in found:
        assert isinstance(each, SealiftError) or each == SUMS


class Crossing:
    """A relay that leads rank 2 to rank 1 of another start of the same group."""

    def __init__(self, own: RelayClient, other: RelayClient) -> None:
        self._own, self._other = own, other
        self.accept = own.accept

    def open(self, name: str, *waiting: Any, **wait: Any) -> Any:
        there = self._other if name == NAMES[1] else self._own
        return there.open(name, *waiting, **wait)


@pytest.mark.parametrize("crossed", [False, True])
def test_a_relay_that_splits_a_group_is_found_by_whoever_compares(
    crossed: bool,
) -> None:
    """The control is the same two starts side by side, each by itself."""
    with ExitStack() as stack:
        starts = [Ranks(stack, "relay") for _ in range(2)]
        starts[1].cast = starts[0].cast
        meetings = []
        for ours, theirs in (starts, starts[::-1]):
            ours.timeout_s = 3.0 if crossed else 20.0
            meetings += [ours.meeting(rank) for rank in range(2)]
            last = ours.dial(NAMES[2])
            other = theirs.dial(NAMES[2] if crossed else "nobody")
            astray = Crossing(last, other) if crossed else last
            meetings.append(ours.meeting(2, relay=astray))
        found = on_all(meetings, sums)
    if not crossed:
        assert found == [SUMS] * 6
        return
    assert all(isinstance(each, SealiftError) for each in found)
    assert "two-views" in codes(found)


class Former(DevelopmentAttester):
    """Shows what it showed once."""

    shown: Evidence | None = None

    def collect(self, bound: bytes) -> Evidence:
        self.shown = self.shown or super().collect(bound)
        return self.shown


def test_evidence_of_a_former_start_is_no_evidence(ranks: Ranks) -> None:
    attester = Former(
        ranks.cast.attester_key, role=Role.ACCELERATOR, code_bundle=BUNDLE
    )
    attester.collect(bytes(32))
    stale = ranks.endpoint(2, attester=attester)
    meetings = [ranks.meeting(0), ranks.meeting(1), ranks.meeting(2, stale)]
    found = on_all(meetings, sums)
    assert all(isinstance(each, SealiftError) for each in found)
    assert any(isinstance(each, RefusedError) for each in found)
