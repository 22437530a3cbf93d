"""How fast a pipe is, beside the same program without sealing: 25 MiB both ways at once.

Two processes, each sending in a thread while it receives in another. The plain arm sends
frames as long over a carrier of the same kind, and copies each from where it came. Over
TCP there is a bare socket besides, which writes into the program's own memory: what no
pipe that seals can be. A repeat ends when both ends have everything.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import ExitStack
from functools import partial
from secrets import token_bytes
from types import SimpleNamespace
from typing import Final, Protocol, cast

from sealift.channel.transport.memfd import MemfdTransport
from sealift.channel.transport.tcp import TcpTransport
from sealift.channel.transport.transport import SlotTransport
from sealift.crypto.aead import Suite
from sealift.crypto.keys import KEY_BYTES, SecretKey, derive
from sealift.lab.bench.harness import Answer, End, Peer, pack, unpack
from sealift.lab.bench.report import BenchReport, interleaved
from sealift.session.pipe import RECORD_BYTES, Pipe
from sealift.session.relay.client import RelayClient
from sealift.session.relay.server import Relay
from sealift.session.session import Session
from sealift.session.transcript import Side

PIPE_BYTES: Final = 25 << 20
BAR: Final = 1.5
ARMS: Final = {
    "memfd": ("plain", "sealed"),
    "tcp": ("plain", "sealed", "bare"),
    "relay": ("plain", "sealed"),
}
_TIMEOUT_S: Final = 60.0


def measure(report: BenchReport, repeats: int) -> None:
    """A row for every carrier; the ratio is of times, sealed to plain."""
    for kind, names in ARMS.items():
        with (
            Peer.start(Between) as relay,
            Peer.start(PipeEnd) as peer,
        ):
            end, seed = PipeEnd(), pack(token_bytes(KEY_BYTES))
            peer.ask("meet", seed=seed)
            end.meet(seed, opens=True)
            port = relay.ask("listen")["port"]
            for arm in names:
                ours, theirs = _connection(kind)
                peer.tell("carry", theirs, kind=kind, arm=arm, port=port)
                end.carry(ours, kind, arm, port, opens=True)
                peer.hear()
            arms = {arm: partial(_both_ways, end, peer, arm) for arm in names}
            spent = interleaved(arms, repeats, warm_up=3)
            end.close()
        ratio = spent["sealed"].median / spent["plain"].median
        report.rows.append(
            {
                "where": f"pipe {kind}",
                "mib_each_way": PIPE_BYTES >> 20,
                **{f"{arm}_ms": round(spent[arm].median * 1000, 2) for arm in names},
                "times": round(ratio, 2),
                "bar": BAR,
            }
        )
        report.ratios[f"pipe_{kind}_sealed_vs_plain_time"] = round(ratio, 3)


def _connection(kind: str) -> tuple[socket.socket, socket.socket]:
    if kind != "tcp":
        return socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return socket.create_connection(listener.getsockname()), listener.accept()[0]


def _both_ways(end: PipeEnd, peer: Peer, arm: str) -> None:
    peer.tell("both_ways", arm=arm)
    end.both_ways(arm)
    peer.hear()


class Way(Protocol):
    """What is measured."""

    def send(self, source: memoryview) -> None:
        """Send all of it."""

    def receive_into(self, target: memoryview) -> None:
        """Fill it."""

    def close(self) -> None:
        """End it."""


class Bare:
    """A connected socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.close = sock.close
        self.send = sock.sendall
        self._sock = sock

    def receive_into(self, target: memoryview) -> None:
        """Read into the program's own memory."""
        filled = 0
        while filled < len(target):
            filled += self._sock.recv_into(target[filled:])


class Plain:
    """Frames as long as a pipe's records, as they are."""

    def __init__(self, carrier: SlotTransport) -> None:
        self.close = carrier.close
        self._carrier = carrier

    def send(self, source: memoryview) -> None:
        """Send them one by one."""
        for start in range(0, len(source), RECORD_BYTES):
            self._carrier.send(source[start : start + RECORD_BYTES])

    def receive_into(self, target: memoryview) -> None:
        """Copy each from where it came."""
        filled = 0
        while filled < len(target):
            frame = self._carrier.borrow(_TIMEOUT_S)
            target[filled : filled + len(frame)] = frame
            filled += len(frame)
            self._carrier.give_back()


class PipeEnd(End):
    """Either process."""

    def __init__(self) -> None:
        self._ways: dict[str, Way] = {}
        self._ending = ExitStack()
        # Pages of its own: untouched ones are all one cached page of zeroes.
        self._source = memoryview(bytearray(os.urandom(PIPE_BYTES)))
        self._target = memoryview(bytearray(os.urandom(PIPE_BYTES)))

    def meet(self, seed: str, *, opens: bool = False) -> None:
        """What a session with the other process would export."""
        key = SecretKey(unpack(seed))
        side = Side.INITIATOR if opens else Side.RESPONDER
        agreed = SimpleNamespace(
            established=SimpleNamespace(side=side, suite=Suite.AES_256_GCM),
            export=partial(derive, key),
        )
        self._session = cast(Session, agreed)

    def carry(
        self,
        sock: socket.socket,
        kind: str,
        arm: str,
        port: int,
        *,
        opens: bool = False,
    ) -> None:
        """What an arm goes over."""
        carrier: SlotTransport
        if kind == "memfd":
            make = MemfdTransport.offer if opens else MemfdTransport.accept
            carrier = make(sock)
        elif kind == "relay":
            name, other = (f"{arm}-{each}" for each in ("ab" if opens else "ba"))
            client = RelayClient.dial(("127.0.0.1", port), name)
            self._ending.callback(client.close)
            sock.close()  # the relay's port is dialled
            carrier = client.open(other, wait_s=10) if opens else client.accept(30)
        elif arm == "bare":
            self._ways[arm] = Bare(sock)
            return
        else:
            carrier = TcpTransport(sock)
        self._ways[arm] = (
            Plain(carrier) if arm == "plain" else Pipe(self._session, carrier, b"bench")
        )

    def both_ways(self, arm: str) -> None:
        """Everything there, everything back."""
        way = self._ways[arm]
        sending = threading.Thread(target=way.send, args=(self._source,))
        sending.start()
        way.receive_into(self._target)
        sending.join()

    def close(self) -> None:
        """Hang up."""
        for way in self._ways.values():
            getattr(way, "abort", way.close)()
        self._ending.close()


class Between(End):
    """The relay."""

    def listen(self) -> Answer:
        """Where."""
        self._relay = Relay.listen()
        return {"port": self._relay.address[1]}

    def close(self) -> None:
        """Stop."""
        self._relay.close()
