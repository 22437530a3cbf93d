"""Three share servers on loopback, each with an identity, and whoever may ask them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Self

from sealift.channel.transport.tcp import TcpListener
from sealift.crypto.sign import SigningKey
from sealift.events import Event
from sealift.ids import Digest, Role
from sealift.numeric.kernels import portable_kernels
from sealift.outsource.compute import ShareProducts
from sealift.outsource.connections import Connections, ServerPlace
from sealift.outsource.masked import SHARES, Share
from sealift.outsource.server import ShareServer
from sealift.session.endpoint import Endpoint, PeerPolicy
from tests.sim.quickkernels import portable_products

AGREEMENT = Digest.of(b"three organisations")
KERNELS = portable_kernels()
PARTIES: dict[Share, str] = {"P": "cloud-a", "M": "cloud-b", "Z": "cloud-c"}


class SharesWorld:
    """Servers, where they are, and the process that they trust.

    Attributes:
        events: What happened at each server.
    """

    def __init__(self, most_bytes: int = 1 << 30) -> None:
        self.instance = SigningKey.generate()
        self.identities = {share: SigningKey.generate() for share in SHARES}
        self.events: dict[Share, list[Event]] = {share: [] for share in SHARES}
        self.servers = {
            share: self.server(share, most_bytes=most_bytes) for share in SHARES
        }
        self.addresses: dict[Share, tuple[str, int]] = {}

    def server(
        self,
        share: Share,
        *,
        products: ShareProducts | None = None,
        most_bytes: int = 1 << 30,
    ) -> ShareServer:
        endpoint = Endpoint(
            role=Role.SHARE_SERVER,
            name=PARTIES[share],
            agreement=AGREEMENT,
            identity=self.identities[share],
        )
        expect = PeerPolicy(
            roles=frozenset({Role.ACCELERATOR}), instance=self.instance.public_key
        )
        return ShareServer(
            share, endpoint, expect, products=products or portable_products(), kernels=KERNELS,
            most_bytes=most_bytes, sink=self.events[share].append,
        )  # fmt: skip

    @contextmanager
    def serving(self, hosts: Sequence[str] = ("127.0.0.1",) * 3) -> Iterator[Self]:
        with ExitStack() as stack:
            for host, (share, server) in zip(hosts, self.servers.items(), strict=True):
                listener = stack.enter_context(closing(TcpListener(host)))
                self.addresses[share] = listener.address
                thread = threading.Thread(target=server.serve, args=(listener,))
                thread.start()
                stack.callback(thread.join, 10)
                stack.callback(listener.close)
                stack.callback(server.close)
            yield self

    def places(self) -> list[ServerPlace]:
        return [self.place(share) for share in SHARES]

    def place(
        self, share: Share, address: tuple[str, int] | None = None
    ) -> ServerPlace:
        party = PARTIES[share]
        policy = PeerPolicy(
            roles=frozenset({Role.SHARE_SERVER}),
            identities={party: self.identities[share].public_key},
            require_identity=True,
            names=frozenset({party}),
        )
        where = address or self.addresses[share]
        return ServerPlace(share=share, party=party, address=where, policy=policy)

    def endpoint(self) -> Endpoint:
        return Endpoint(
            role=Role.ACCELERATOR,
            name="accelerator-0",
            agreement=AGREEMENT,
            instance=self.instance,
        )

    def dial(self, *, answer_s: float = 10.0, one_host: bool = True) -> Connections:
        return Connections.dial(
            self.endpoint(), self.places(), answer_s=answer_s, one_host=one_host
        )
