"""Ranks that find each other through a real relay, over each kind of path."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from sealift.attest.development import DevelopmentAttester
from sealift.channel.transport.tcp import TcpListener
from sealift.channel.transport.unixsocket import LocalListener
from sealift.collective.charter import Charter
from sealift.collective.meeting import GroupMeeting
from sealift.crypto.sign import SigningKey
from sealift.errors import IntegrityError, PeerError, SealiftError
from sealift.ids import Digest, Role
from sealift.session.direct import PathDialler
from sealift.session.directhost import DirectHost
from sealift.session.endpoint import Endpoint, PeerPolicy
from sealift.session.relay.client import RelayClient
from sealift.session.relay.server import Relay
from tests.sim.attested import AGREEMENT, BUNDLE, Cast

SHAPE = Digest.of(b"shape")
NAMES = tuple(f"accelerator-{rank}" for rank in range(3))


class Ranks:
    """Three processes' worth of ranks, each with a connection of its own to a relay."""

    def __init__(self, stack: ExitStack, kind: str) -> None:
        self.cast = Cast()
        self._relay = stack.enter_context(Relay.listen())
        self._kind, self._stack = kind, stack
        self.timeout_s = 20.0

    def endpoint(self, rank: int, **changes: Any) -> Endpoint:
        key = changes.pop("attester_key", self.cast.attester_key)
        attester = DevelopmentAttester(key, role=Role.ACCELERATOR, code_bundle=BUNDLE)
        kept = {"name": NAMES[rank], "agreement": AGREEMENT, "attester": attester}
        return Endpoint(role=Role.ACCELERATOR, **{**kept, **changes})

    def expect(self, name: str) -> PeerPolicy:
        policy = self.cast.of_accelerator
        return PeerPolicy(
            roles=policy.roles,
            require_evidence=True,
            appraiser=policy.appraiser,
            names=frozenset({name}),
        )

    def meeting(
        self, rank: int, endpoint: Endpoint | None = None, **charter: Any
    ) -> GroupMeeting:
        endpoint = endpoint or self.endpoint(rank)
        kept = {"agreement": AGREEMENT, "job": "digits", "shape": SHAPE, "names": NAMES}
        relay = RelayClient.dial(self._relay.address, endpoint.name)
        self._stack.callback(relay.close)
        host, places = None, set[str]()
        if self._kind == "memfd":
            host = DirectHost(local=LocalListener())
        elif self._kind == "tcp":
            host = DirectHost(tcp=(listener := TcpListener("127.0.0.1", 0)))
            TCP[NAMES[rank]] = "{}:{}".format(*listener.address)
            places = set(TCP.values())
        if host is not None:
            self._stack.callback(host.close)
        return GroupMeeting(
            Charter(**{**kept, **charter}),
            endpoint,
            relay,
            self.expect,
            host=host,
            dialler=PathDialler(local=self._kind == "memfd", places=places),
            timeout_s=self.timeout_s,
        )


TCP: dict[str, str] = {}


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


def on_all(meetings: list[GroupMeeting], work: Callable[[Any], Any]) -> list[Any]:
    def one(meeting: GroupMeeting) -> Any:
        try:
            with meeting.meet() as group:
                return work(group)
        except SealiftError as error:
            return error

    with ThreadPoolExecutor(len(meetings)) as pool:
        return list(pool.map(one, meetings))


def sums(group: Any) -> list[float]:
    found = []
    for size in (3, 100_000, 700_000):
        tensor = np.full(size, group.rank + 1.0, np.float32)
        group.all_reduce(tensor)
        assert tensor.min() == tensor.max()
        found.append(float(tensor[0]))
    return found


def test_ranks_meet_and_sum_over_each_kind_of_path(
    ranks: Ranks, request: pytest.FixtureRequest
) -> None:
    meetings = [ranks.meeting(rank) for rank in range(3)]
    assert on_all(meetings, sums) == [[6.0, 6.0, 6.0]] * 3
    kind = request.node.callspec.params["ranks"]
    assert {path for each in meetings for path in each.paths.values()} == {kind}


def codes(found: list[Any]) -> set[str]:
    return {error.code for error in found if isinstance(error, SealiftError)}


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


def test_a_rank_without_acceptable_evidence_ends_it_for_all(relayed: Ranks) -> None:
    stranger = relayed.endpoint(2, attester_key=SigningKey.generate())
    meetings = [relayed.meeting(rank) for rank in range(2)]
    meetings.append(relayed.meeting(2, stranger))
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
