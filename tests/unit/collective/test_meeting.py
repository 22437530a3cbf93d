"""Ranks that find each other through a real relay, over each kind of path."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from sealift.collective.group import SealedGroup
from sealift.collective.meeting import EPOCH_BYTES, Charter
from sealift.crypto.sign import SigningKey
from sealift.errors import IntegrityError, PeerError, SealiftError
from sealift.ids import Digest
from tests.sim.attested import AGREEMENT
from tests.sim.meetings import NAMES, SHAPE, TCP, Ranks, codes, on_all, sums
from tests.sim.summing import SummingHost, put, read
from tests.unit.collective.test_group import contribution, in_order


@pytest.fixture(params=["memfd", "tcp", "relay"])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    TCP.clear()
    with ExitStack() as stack:
        yield Ranks(stack, request.param)


@pytest.fixture
def relayed() -> Iterator[Ranks]:
    """Where somebody will wait in vain."""
    with ExitStack() as stack:
        found = Ranks(stack, "relay")
        found.timeout_s = 3.0
        yield found


def test_ranks_meet_and_sum_over_each_kind_of_path(
    ranks: Ranks, request: pytest.FixtureRequest
) -> None:
    meetings = [ranks.meeting(rank) for rank in range(3)]
    assert on_all(meetings, sums) == [[6.0, 6.0, 6.0]] * 3
    assert [each.levels for each in meetings] == [("development",) * 2] * 3
    kind = request.node.callspec.params["ranks"]
    assert {path for each in meetings for path in each.paths.values()} == {kind}


def test_a_rank_that_met_sums_on_its_device(ranks: Ranks) -> None:
    """Others add up in their own memory; messages of many records, on every path."""
    device = SummingHost(threads=1)
    mine = [contribution(rank, 300_000) for rank in range(3)]

    def work(group: SealedGroup) -> bytes:
        if group.rank != 1:
            group.all_reduce(mine[group.rank])
            return mine[group.rank].tobytes()
        group.use_device(device)
        tensor = put(device, mine[1])
        group.all_reduce(tensor)
        return read(device, tensor).tobytes()  # type: ignore[no-any-return]

    meetings = [ranks.meeting(rank) for rank in range(3)]
    assert on_all(meetings, work) == [in_order(3, 300_000).tobytes()] * 3
    device.close()


@pytest.mark.parametrize(
    "drift",
    [
        {"job": "other"},
        {"shape": Digest.of(b"other")},
    ],
)
def test_another_charter_is_another_view(relayed: Ranks, drift: dict[str, Any]) -> None:
    meetings = [relayed.meeting(rank) for rank in range(2)]
    meetings.append(relayed.meeting(2, **drift))
    found = on_all(meetings, sums)
    assert all(isinstance(error, IntegrityError | PeerError) for error in found)
    assert "two-views" in codes(found)


def test_a_rank_with_another_version_of_a_library_is_refused(relayed: Ranks) -> None:
    """What one of them has alone is not compared."""
    here = {"torch": "2.13.0", "peft": "0.21"}
    there = {"torch": "2.13.0", "ray": "2.60"}
    meetings = [relayed.meeting(0, versions=here), relayed.meeting(1, versions=there)]
    meetings.append(relayed.meeting(2, versions={"torch": "2.12.0"}))
    found = on_all(meetings, sums)
    assert all(isinstance(error, SealiftError) for error in found)
    assert "mixed-versions" in codes(found)
    assert found[2].code == "mixed-versions"
    assert "torch 2.13.0 there and 2.12.0 here" in found[2].why


def test_a_view_is_of_this_start_and_of_who_has_which_rank() -> None:
    charter = Charter(agreement=AGREEMENT, job="digits", shape=SHAPE, names=NAMES)
    keys = [SigningKey.generate().public_key for _ in NAMES]
    view = charter.view(keys, bytes(EPOCH_BYTES))
    assert view == charter.view(keys, bytes(EPOCH_BYTES))
    assert view != charter.view(keys, bytes(EPOCH_BYTES - 1) + b"1")
    assert view != charter.view(keys[::-1], bytes(EPOCH_BYTES))


def test_other_ranks_for_the_same_names_meet_nobody(relayed: Ranks) -> None:
    meetings = [relayed.meeting(rank) for rank in range(2)]
    meetings.append(relayed.meeting(2, names=NAMES[1::-1] + NAMES[2:]))
    assert all(isinstance(error, SealiftError) for error in on_all(meetings, sums))


def test_two_ranks_with_one_instance_key_are_found(relayed: Ranks) -> None:
    twin = SigningKey.generate()
    endpoints = [
        relayed.endpoint(0),
        relayed.endpoint(1, instance=twin),
        relayed.endpoint(2, instance=twin),
    ]
    meetings = [relayed.meeting(rank, endpoints[rank]) for rank in range(3)]
    assert "one-key-two-ranks" in codes(on_all(meetings, sums))


@pytest.mark.parametrize("stranger", [0, 2], ids=["earliest", "latest"])
def test_a_rank_without_acceptable_evidence_ends_it_for_all(
    relayed: Ranks, stranger: int
) -> None:
    """Earlier ranks judge later ones, and later ones earlier ones."""
    other = relayed.endpoint(stranger, attester_key=SigningKey.generate())
    meetings = [
        relayed.meeting(rank, other if rank == stranger else None) for rank in range(3)
    ]
    found = on_all(meetings, sums)
    assert all(isinstance(error, SealiftError) for error in found)
    assert {type(error).__name__ for error in found} & {"EvidenceError", "PolicyError"}


def test_another_agreement_ends_it(relayed: Ranks) -> None:
    other = relayed.endpoint(1, agreement=Digest.of(b"another"))
    meetings = [relayed.meeting(0), relayed.meeting(1, other), relayed.meeting(2)]
    assert all(isinstance(error, SealiftError) for error in on_all(meetings, sums))


def test_a_rank_that_does_not_come_is_named(relayed: Ranks) -> None:
    meetings = [relayed.meeting(rank) for rank in range(2)]
    for error in on_all(meetings, sums):
        assert isinstance(error, PeerError)
    errors = on_all([relayed.meeting(2)], sums)
    assert "accelerator-" in str(errors[0])


def test_every_start_has_an_epoch_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of the same ranks: rank 0 draws it, and all others hear it."""
    epochs: list[bytes] = []
    view = Charter.view

    def seen(self: Charter, instances: Any, epoch: bytes) -> Digest:
        epochs.append(epoch)
        return view(self, instances, epoch)

    monkeypatch.setattr(Charter, "view", seen)
    for _start in range(2):
        with ExitStack() as stack:
            ranks = Ranks(stack, "relay")
            meetings = [ranks.meeting(rank) for rank in range(3)]
            assert on_all(meetings, sums) == [[6.0] * 3] * 3
    assert len(epochs) == 6
    assert len(set(epochs)) == 2
    assert {len(each) for each in epochs} == {EPOCH_BYTES}
