"""How fast a channel is: sealing beside memcpy, and pipes beside the same without sealing.

Between processes of one machine; to a device: ``python -m benchmarks link``. Everything is
measured in one run with repeats of the arms interleaved, and a repeat ends when every end
has, in its own memory, all that it is sent, verified where it was sealed.
One way over TCP, the ratio is of throughput. Both ways at once, each process sends in a
thread while it receives in another, and the ratio is of times. The plain arm sends frames
as long over a carrier of the same kind, and copies each from where it came. Over TCP there
is a bare socket besides, which writes into the program's own memory: what no pipe that
seals can be.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial
from secrets import token_bytes
from types import SimpleNamespace
from typing import Final, Protocol, cast

from benchmarks import requests
from benchmarks.harness import Answer, End, Peer, pack, unpack
from benchmarks.report import Arm, BenchReport, interleaved, start_report
from sealift.channel.record.layout import sealed_bytes
from sealift.channel.record.sealer import StreamSealer
from sealift.channel.transport.memfd import MemfdTransport
from sealift.channel.transport.tcp import TcpTransport
from sealift.channel.transport.transport import SlotTransport
from sealift.crypto.aead import Suite
from sealift.crypto.keys import KEY_BYTES, SecretKey, derive
from sealift.ids import Buffer
from sealift.session.devicepipe import DevicePipe
from sealift.session.pipe import RECORD_BYTES
from sealift.session.relay.client import RelayClient
from sealift.session.relay.server import Relay
from sealift.session.session import Session
from sealift.session.transcript import Side

SIZES_BYTES: Final = (64 << 20, 256 << 20)
BOTH_WAYS_BYTES: Final = 25 << 20
BAR: Final = 1.5
ARMS: Final = {
    "memfd": ("plain", "sealed"),
    "tcp": ("plain", "sealed", "bare"),
    "relay": ("plain", "sealed"),
}
_TIMEOUT_S: Final = 60.0


def run(*, quick: bool = False) -> BenchReport:
    """Measure everything; about 15 s, with ``quick`` about 6 s."""
    report = start_report("channel")
    report.real = ["AES-256-GCM on one core", "two processes on this machine"]
    repeats = 7 if quick else 21
    sizes = SIZES_BYTES[:1] if quick else SIZES_BYTES
    for size in sizes:
        _measure(report, "one core", size, _arms_here(size), repeats)
    for size in sizes:
        with _ends("tcp", ("plain", "sealed"), size) as (end, peer):
            arms = {
                arm: partial(_one_way, end, peer, arm) for arm in ("plain", "sealed")
            }
            _measure(report, "tcp", size, arms, repeats)
    for kind, names in ARMS.items():
        _measure_both_ways(report, kind, names, repeats)
    requests.measure(report, quick=quick)
    return report


def _arms_here(size: int) -> dict[str, Arm]:
    key, source, copy = SecretKey.generate(), _written(size), _written(size)
    sealed = memoryview(bytearray(size // RECORD_BYTES * sealed_bytes(RECORD_BYTES)))

    def memcpy() -> None:
        copy[:] = source

    def seal() -> None:
        sealer = StreamSealer(key, total_bytes=size, record_bytes=RECORD_BYTES)
        position = 0
        for start in range(0, size, RECORD_BYTES):
            record = source[start : start + RECORD_BYTES]
            position += sealer.seal_into(record, sealed[position:])

    return {"memcpy": memcpy, "seal": seal}


def _measure(
    report: BenchReport, where: str, size: int, arms: Mapping[str, Arm], repeats: int
) -> None:
    """A row, and the ratio of the second arm to the first."""
    spent = interleaved(arms, repeats)
    rates = {f"{arm}_gb_per_s": spent[arm].gb_per_s(size) for arm in arms}
    report.rows.append({"where": where, "mib": size >> 20, **rates})
    plain, sealed = arms
    name = "seal_vs_memcpy" if where == "one core" else "sealed_vs_plain_tcp"
    report.keep_worst(name, spent[plain].median / spent[sealed].median)


def _measure_both_ways(
    report: BenchReport, kind: str, names: tuple[str, ...], repeats: int
) -> None:
    with _ends(kind, names, BOTH_WAYS_BYTES) as (end, peer):
        arms = {arm: partial(_both_ways, end, peer, arm) for arm in names}
        spent = interleaved(arms, repeats, warm_up=3)
    ratio = spent["sealed"].median / spent["plain"].median
    report.rows.append(
        {
            "where": f"pipe {kind}",
            "mib_each_way": BOTH_WAYS_BYTES >> 20,
            **{f"{arm}_ms": round(spent[arm].median * 1000, 2) for arm in names},
            "times": round(ratio, 2),
            "bar": BAR,
        }
    )
    report.ratios[f"pipe_{kind}_sealed_vs_plain_time"] = round(ratio, 3)


@contextmanager
def _ends(
    kind: str, names: tuple[str, ...], nbytes: int
) -> Iterator[tuple[PipeEnd, Peer]]:
    """This process's end and another's, joined once for each arm."""
    with Peer.start(Between) as relay, Peer.start(PipeEnd, nbytes) as peer:
        end, seed = PipeEnd(nbytes), pack(token_bytes(KEY_BYTES))
        port = relay.ask("listen")["port"]
        for arm in names:
            ours, theirs = _connection(kind)
            terms = {"kind": kind, "arm": arm, "port": port, "seed": seed}
            peer.tell("carry", theirs, **terms)
            end.carry(ours, **terms, opens=True)
            peer.hear()
        yield end, peer
        end.close()


def _connection(kind: str) -> tuple[socket.socket, socket.socket]:
    if kind != "tcp":
        return socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return socket.create_connection(listener.getsockname()), listener.accept()[0]


def _one_way(end: PipeEnd, peer: Peer, arm: str) -> None:
    peer.tell("take", arm=arm)
    end.give(arm)
    peer.hear()


def _both_ways(end: PipeEnd, peer: Peer, arm: str) -> None:
    peer.tell("both_ways", arm=arm)
    end.both_ways(arm)
    peer.hear()


class Way(Protocol):
    """What is measured."""

    def send(self, source: Buffer) -> None:
        """Send all of it."""

    def receive_into(self, target: bytearray | memoryview) -> None:
        """Fill it."""

    def close(self) -> None:
        """End it."""


class Bare:
    """A connected socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.close = self.abort = sock.close
        self.send = sock.sendall
        self._sock = sock

    def receive_into(self, target: bytearray | memoryview) -> None:
        """Read into the program's own memory."""
        fill(self._sock, memoryview(target))


class Plain:
    """Frames as long as a pipe's records, as they are."""

    def __init__(self, carrier: SlotTransport) -> None:
        self.close = self.abort = carrier.close
        self._carrier = carrier

    def send(self, source: Buffer) -> None:
        """Send them one by one."""
        for start in range(0, len(source), RECORD_BYTES):
            self._carrier.send(memoryview(source)[start : start + RECORD_BYTES])

    def send_now(self, source: Buffer) -> bool:
        """Send one, if there is room."""
        if len(source) > RECORD_BYTES or not self._carrier.has_room(len(source)):
            return False
        self._carrier.send(source)
        return True

    def receive_into(self, target: bytearray | memoryview) -> None:
        """Copy each from where it came."""
        copy_frames(self._carrier, target)


class PipeEnd(End):
    """Either process, with so many bytes to send and as many to receive."""

    def __init__(self, nbytes: int | str) -> None:
        self._nbytes = int(nbytes)
        self._ways: dict[str, Way] = {}
        self._ending = ExitStack()

    @cached_property
    def _source(self) -> memoryview:
        return _written(self._nbytes)

    @cached_property
    def _target(self) -> memoryview:
        return _written(self._nbytes)

    def carry(
        self,
        sock: socket.socket,
        kind: str,
        arm: str,
        port: int,
        seed: str,
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
            Plain(carrier) if arm == "plain" else pipe_over(carrier, seed, opens=opens)
        )

    def give(self, arm: str) -> None:
        """Everything there."""
        self._ways[arm].send(self._source)

    def take(self, arm: str) -> None:
        """Everything from there."""
        self._ways[arm].receive_into(self._target)

    def both_ways(self, arm: str) -> None:
        """Everything there, everything back."""
        sending = threading.Thread(target=self.give, args=(arm,))
        sending.start()
        self.take(arm)
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


def pipe_over(
    carrier: SlotTransport, seed: str, *, opens: bool, timeout_s: float = _TIMEOUT_S
) -> DevicePipe:
    """A pipe with the keys that a session of both processes would export."""
    agreed = SimpleNamespace(
        established=SimpleNamespace(
            side=Side.INITIATOR if opens else Side.RESPONDER, suite=Suite.AES_256_GCM
        ),
        export=partial(derive, SecretKey(unpack(seed))),
    )
    return DevicePipe(cast(Session, agreed), carrier, b"bench", timeout_s=timeout_s)


def copy_frames(
    carrier: SlotTransport,
    target: bytearray | memoryview,
    inside: slice = slice(None),
    timeout_s: float = _TIMEOUT_S,
) -> None:
    """Fill memory with what comes, or with that part of every frame."""
    filled = 0
    while filled < len(target):
        frame = carrier.borrow(timeout_s)[inside]
        target[filled : filled + len(frame)] = frame
        filled += len(frame)
        carrier.give_back()


def fill(sock: socket.socket, room: memoryview) -> None:
    """Read from a socket until memory is full."""
    filled = 0
    while filled < len(room):
        count = sock.recv_into(room[filled:])
        if not count:
            raise EOFError("the other end closed before everything was there")
        filled += count


def _written(size: int) -> memoryview:
    """Memory with pages of its own: untouched pages are all one cached page of zeroes."""
    return memoryview(bytearray(os.urandom(size)))
