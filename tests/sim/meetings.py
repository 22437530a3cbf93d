"""Ranks that meet through a real relay, in one process; somebody may sit on a line to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np

from sealift.attest.development import DevelopmentAttester
from sealift.channel.transport.tcp import TcpListener, TcpTransport
from sealift.channel.transport.unixsocket import LocalListener
from sealift.collective.meeting import Charter, GroupMeeting
from sealift.errors import SealiftError
from sealift.ids import Digest, Role
from sealift.session.direct import PathDialler
from sealift.session.directhost import DirectHost
from sealift.session.endpoint import Endpoint, PeerPolicy
from sealift.session.relay.client import RelayClient
from sealift.session.relay.server import Relay
from tests.sim.attested import AGREEMENT, BUNDLE, Cast
from tests.sim.pipes import Change, Tapped

SHAPE = Digest.of(b"shape")
NAMES = tuple(f"accelerator-{rank}" for rank in range(3))


class Ranks:
    """Three processes' worth of ranks, each with a connection of its own to a relay."""

    def __init__(self, stack: ExitStack, kind: str) -> None:
        self.cast = Cast()
        self.relay = stack.enter_context(Relay.listen())
        self._kind, self._stack = kind, stack
        self.timeout_s = 20.0

    def dial(self, name: str, change: Change | None = None) -> RelayClient:
        """A connection to the relay; what is sent there passes ``change``."""
        line = TcpTransport.dial(*self.relay.address)
        client = RelayClient(line if change is None else Tapped(line, change), name)
        self._stack.callback(client.close)
        return client

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
        self,
        rank: int,
        endpoint: Endpoint | None = None,
        relay: Any = None,
        versions: Mapping[str, str] | None = None,
        **charter: Any,
    ) -> GroupMeeting:
        endpoint = endpoint or self.endpoint(rank)
        kept = {"agreement": AGREEMENT, "job": "digits", "shape": SHAPE, "names": NAMES}
        relay = relay or self.dial(endpoint.name)
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
            versions=versions,
            timeout_s=self.timeout_s,
        )


TCP: dict[str, str] = {}


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


def codes(found: list[Any]) -> set[str]:
    return {error.code for error in found if isinstance(error, SealiftError)}
