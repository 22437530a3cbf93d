"""The processes of the measurement: three servers of shares, and whoever asks them.

Identities are made here, and everybody is one machine's: what is measured is the protocol.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Final

import torch

from benchmarks.harness import Answer, End, Peer
from sealift.channel.transport.tcp import TcpListener
from sealift.crypto.sign import PublicKey, SigningKey
from sealift.ids import Digest, Role
from sealift.numeric.kernels import best_kernels
from sealift.outsource.compute import ShareProducts
from sealift.outsource.connections import Connections, ServerPlace
from sealift.outsource.masked import SHARES, Share
from sealift.outsource.server import ShareServer
from sealift.outsource.trace import Traces
from sealift.session.endpoint import Endpoint, PeerPolicy

AGREEMENT: Final = Digest.of(b"the servers of a measurement")
_MOST_BYTES: Final = 8 << 30
_ANSWER_S: Final = 300.0


class ShareEnd(End):
    """One server, on one thread of arithmetic."""

    def __init__(self, share: str) -> None:
        torch.set_num_threads(1)
        (self._share,) = (each for each in SHARES if each == share)
        self._identity = SigningKey.generate()
        self._kernels = replace(best_kernels(), cores=1)
        self._listener = TcpListener()

    def open(self, instance: str) -> Answer:
        """Serve whoever has this instance key; where, and as whom."""
        server = ShareServer(
            self._share,
            Endpoint(
                role=Role.SHARE_SERVER,
                name=self._share.lower(),
                agreement=AGREEMENT,
                identity=self._identity,
            ),
            PeerPolicy(
                roles=frozenset({Role.ACCELERATOR}),
                instance=PublicKey.from_text(instance),
            ),
            products=ShareProducts("cpu", self._kernels),
            kernels=self._kernels,
            most_bytes=_MOST_BYTES,
        )
        threading.Thread(
            target=server.serve, args=(self._listener,), daemon=True
        ).start()
        host, port = self._listener.address
        key = self._identity.public_key.to_text()
        return {"host": host, "port": port, "key": key}


class ShareEnds:
    """Three of them, started."""

    def __init__(self, stack: ExitStack) -> None:
        self._instance = SigningKey.generate()
        ends = {s: stack.enter_context(Peer.start(ShareEnd, s)) for s in SHARES}
        key = self._instance.public_key.to_text()
        self._ends = ends
        self._places = [
            _place(share, end.ask("open", instance=key)) for share, end in ends.items()
        ]

    @contextmanager
    def asked(self, traces: Traces) -> Iterator[Connections]:
        """Sessions with all three, for steps of these traces."""
        endpoint = Endpoint(
            role=Role.ACCELERATOR,
            name="accelerator-0",
            agreement=AGREEMENT,
            instance=self._instance,
        )
        with Connections.dial(
            endpoint, self._places, answer_s=_ANSWER_S, one_host=True
        ) as found:
            found.announce(traces)
            yield found

    def cpu_s(self) -> dict[Share, float]:
        """Processor seconds of each so far."""
        return {share: end.ask("spent")["cpu_s"] for share, end in self._ends.items()}


def _place(share: Share, told: Answer) -> ServerPlace:
    name = share.lower()
    policy = PeerPolicy(
        roles=frozenset({Role.SHARE_SERVER}),
        identities={name: PublicKey.from_text(told["key"])},
        require_identity=True,
        names=frozenset({name}),
    )
    address = (told["host"], int(told["port"]))
    return ServerPlace(share=share, party=name, address=address, policy=policy)
