"""The processes of the measurement: three servers of shares, and whoever asks them.

Identities are made here, and everybody is one machine's: what is measured is the protocol.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Final

import torch

from benchmarks.harness import Answer, End, Peer
from sealift.channel.transport.tcp import TcpListener
from sealift.crypto.sign import PublicKey, SigningKey
from sealift.errors import RefusedError
from sealift.ids import Digest, Role
from sealift.numeric.kernels import best_kernels
from sealift.outsource.compute import ShareProducts
from sealift.outsource.connections import Connections, ServerPlace
from sealift.outsource.masked import SHARES, MaskedProducts, Share
from sealift.outsource.server import ShareServer
from sealift.outsource.trace import Traces
from sealift.session.endpoint import Endpoint, PeerPolicy

AGREEMENT: Final = Digest.of(b"the servers of a measurement")
_MOST_BYTES: Final = 24 << 30
_ANSWER_S: Final = 300.0
_LEAVING_S, _PAUSE_S = 10.0, 0.02


class ShareEnd(End):
    """One server.

    Args:
        share: Which.
        device: Where it multiplies.
        cores: Threads of arithmetic.
    """

    def __init__(self, share: str, device: str, cores: str) -> None:
        torch.set_num_threads(int(cores))
        (self._share,) = (each for each in SHARES if each == share)
        self._identity = SigningKey.generate()
        self._kernels = replace(best_kernels(), cores=int(cores))
        self._products = ShareProducts(device, self._kernels)
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
            products=self._products,
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
    """Three of them, started.

    Args:
        stack: Ends them.
        device: Where they multiply.
        cores: Threads of arithmetic of each.
    """

    def __init__(self, stack: ExitStack, device: str = "cpu", cores: int = 1) -> None:
        self._instance, self._asked = SigningKey.generate(), ExitStack()
        ends = {
            s: stack.enter_context(Peer.start(ShareEnd, s, device, cores))
            for s in SHARES
        }
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

    def open(self, traces: Traces) -> MaskedProducts:
        """As ``module.server.Reach`` has it: sessions for these steps, former ones end."""
        self.close()
        until_s = time.monotonic() + _LEAVING_S
        while True:
            try:
                asked = self._asked.enter_context(self.asked(traces))
                return MaskedProducts(asked, best_kernels())
            except RefusedError:  # it may not have left the former session
                if time.monotonic() > until_s:
                    raise
                time.sleep(_PAUSE_S)

    def close(self) -> None:
        """End what ``open`` opened. Idempotent."""
        self._asked.close()

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
