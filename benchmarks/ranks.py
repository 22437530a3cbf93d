"""One rank of a measured group: its arms, each with connections of its own.

``C`` and ``D`` are the product's; ``plain C`` is C without sealing on the same kind of carrier;
``E`` is C over masked whole numbers (``sums = "only"``); ``A`` is the published way: a ring, opened and sealed again at every hop; ``TLS`` is that
ring over the standard library's TLS; ``gloo`` is torch's, over loopback TCP.
"""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median
from typing import Any, Final

import numpy as np

from benchmarks.channel import Bare, Plain, Way, pipe_over
from benchmarks.harness import Answer, End
from sealift.channel.transport.memfd import MemfdTransport
from sealift.channel.transport.tcp import TcpTransport
from sealift.collective.group import Choices, SealedGroup
from sealift.collective.masked import MaskedSums
from sealift.collective.peer import Wire
from sealift.collective.planner import plan_group
from sealift.collective.tensors import Array
from sealift.release.agreement.sums import SumEncoding
from sealift.session.pipe import RECORD_BYTES

FRAME_BYTES: Final = RECORD_BYTES + (64 << 10)
ALWAYS: Final = 1 << 62
# Sums only, in words of 32 and of 64 bits; ranks contribute 1, 2, ...
MASKED: Final = {"E": SumEncoding(4.0, 26, 32), "E 64": SumEncoding(4.0, 56, 64)}
Reduce = Callable[[Array], None]


class Counted:
    """A pipe that counts what is sealed and opened."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.close, self.abort = wire.close, wire.abort
        self.nbytes = self.operations = 0

    def send(self, source: Any) -> None:
        """Seal and count."""
        self._count(memoryview(source).nbytes)
        self._wire.send(source)

    def send_now(self, source: Any) -> bool:
        """Seal and count, if there is room."""
        sent = self._wire.send_now(source)
        self._count(memoryview(source).nbytes * sent)
        return sent

    def receive_into(self, target: Any) -> None:
        """Open and count."""
        self._count(memoryview(target).nbytes)
        self._wire.receive_into(target)

    def _count(self, nbytes: int) -> None:
        self.nbytes += nbytes
        self.operations += -(-nbytes // RECORD_BYTES)


class Ring:
    """All-reduce by a ring: each hop is received whole, added, and sent on.

    Args:
        onward: To the next rank; may be the same as ``back``.
        back: From the one before.
    """

    def __init__(self, rank: int, world: int, onward: Way, back: Way) -> None:
        self._rank, self._world = rank, world
        self._onward, self._back = onward, back
        self._thread = ThreadPoolExecutor(1)

    def all_reduce(self, tensor: Array) -> None:
        """Sums in the order of the ring, which is another one for each chunk."""
        chunks = np.array_split(tensor, self._world)
        room = np.empty_like(chunks[0])
        for step in range(self._world - 1):
            mine = chunks[(self._rank - step) % self._world]
            theirs = chunks[(self._rank - step - 1) % self._world]
            self._hop(mine, room[: theirs.size])
            theirs += room[: theirs.size]
        for step in range(self._world - 1):
            mine = chunks[(self._rank + 1 - step) % self._world]
            self._hop(mine, chunks[(self._rank - step) % self._world])

    def _hop(self, mine: Array, theirs: Array) -> None:
        sending = self._thread.submit(self._onward.send, mine.data.cast("B"))
        if theirs.size:
            self._back.receive_into(theirs.data.cast("B"))
        sending.result()


def carry(
    rank: int,
    socks: Sequence[socket.socket],
    kind: str,
    over: Callable[[Any, bool], Wire],
) -> dict[int, Wire]:
    """A wire over a socket to each other rank, in their order.

    Args:
        rank: This one.
        socks: To the others.
        kind: ``memfd`` or ``tcp``.
        over: Makes a wire of a carrier, and of whether this end opens the session.
    """
    others = [n for n in range(len(socks) + 1) if n != rank]
    wires: dict[int, Wire] = {}
    for peer, sock in zip(others, socks, strict=True):
        lower = rank < peer
        if kind == "memfd":
            make = MemfdTransport.offer if lower else MemfdTransport.accept
            carrier: Any = make(sock)
        else:
            carrier = TcpTransport(sock, max_frame_bytes=FRAME_BYTES)
        wires[peer] = over(carrier, lower)
    return wires


def start_gloo(port: int, rank: int, world: int) -> None:
    """Start torch's own process group over loopback, with one thread of torch."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=world,
    )


class RankEnd(End):
    """A rank of every arm."""

    def __init__(self, rank: str, world: str) -> None:
        self._rank, self._world = int(rank), int(world)
        self._arms: dict[str, Reduce] = {}
        self._counted: dict[str, list[Counted]] = {}
        self._closing: list[Callable[[], None]] = []
        self._barrier: Callable[[], None] = lambda: None
        self._tensor: Array = np.empty(0, np.float32)
        self._groups: dict[str, SealedGroup] = {}
        self._renew: dict[str, Callable[[], None]] = {}

    def join(self, *socks: socket.socket, arm: str, kind: str, seed: str) -> None:
        """An arm over a socket to each other rank, in their order."""

        def over(carrier: Any, opens: bool) -> Wire:
            if arm == "plain C":
                return Plain(carrier)
            return Counted(pipe_over(carrier, seed, opens=opens))

        wires = carry(self._rank, socks, kind, over)
        self._counted[arm] = [w for w in wires.values() if isinstance(w, Counted)]
        self._closing += [wire.abort for wire in wires.values()]
        if arm == "A":
            onward, back = (
                (self._rank + 1) % self._world,
                (self._rank - 1) % self._world,
            )
            ring = Ring(self._rank, self._world, wires[onward], wires[back])
            self._arms[arm] = ring.all_reduce
            return
        most = ALWAYS if arm == "D" else -1
        group = SealedGroup(self._rank, wires, Choices(one_phase_bytes=most))
        self._arms[arm], self._groups[arm] = group.all_reduce, group
        if arm in MASKED:
            sums = MaskedSums(group, MASKED[arm])
            self._arms[arm] = partial(sums.add_up, encoding=MASKED[arm])
            self._renew[arm] = sums.renew
        if arm == "C":
            self._barrier = group.barrier

    def join_ring(
        self, onward: socket.socket, back: socket.socket, certificate: str
    ) -> None:
        """The ring over TLS: one connection to the next rank, one from the last."""
        for sock in (onward, back):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = ssl.create_default_context(cafile=certificate)
        server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        server.load_cert_chain(certificate)
        with ThreadPoolExecutor(1) as pool:
            there = pool.submit(client.wrap_socket, onward, server_hostname="localhost")
            here = server.wrap_socket(back, server_side=True)
            ring = Ring(self._rank, self._world, Bare(there.result()), Bare(here))
        self._arms["TLS"] = ring.all_reduce

    def join_gloo(self, port: int) -> None:
        """Torch's own, over loopback."""
        import torch
        import torch.distributed as dist

        start_gloo(port, self._rank, self._world)
        self._closing.append(dist.destroy_process_group)
        self._arms["gloo"] = lambda tensor: dist.all_reduce(torch.from_numpy(tensor))

    def reduce(self, arm: str, nbytes: int, repeats: int) -> Answer:
        """Seconds of a call, the median of some; and the last sum's first element."""
        if self._tensor.nbytes != nbytes:
            self._tensor = np.empty(nbytes // 4, np.float32)
        tensor = self._tensor
        self._renew.get(arm, lambda: None)()
        spent = []
        for _ in range(repeats):
            tensor.fill(self._rank + 1)
            self._barrier()
            began = time.perf_counter()
            self._arms[arm](tensor)
            spent.append(time.perf_counter() - began)
        return {"seconds": median(spent), "found": float(tensor[0])}

    def plan(self, arm: str, gradient_bytes: int) -> Answer:
        """What the planner chooses over an arm's pipes, which stays as it is."""
        group = self._groups[arm]
        before = group.choices
        found = plan_group(group, gradient_bytes, time.perf_counter)
        group.choices = before
        return {"one_phase_bytes": found.one_phase_bytes, "why": found.why}

    def count(self, arm: str, nbytes: int) -> Answer:
        """What one call seals and opens here."""
        before = self._totals(arm)
        self.reduce(arm, nbytes, 1)
        after = self._totals(arm)
        return {"nbytes": after[0] - before[0], "operations": after[1] - before[1]}

    def _totals(self, arm: str) -> tuple[int, int]:
        wires = self._counted[arm]
        return sum(w.nbytes for w in wires), sum(w.operations for w in wires)

    def close(self) -> None:
        """Hang up."""
        for each in self._closing:
            each()


def expected(world: int) -> float:
    """What every element is when ranks contribute 1, 2, ..."""
    return float(sum(range(1, world + 1)))


def slowest(answers: list[Answer], world: int) -> float:
    """A collective is over when it is over everywhere; all must have the sum."""
    if any(each["found"] != expected(world) for each in answers):
        raise ValueError("a rank has a wrong sum")
    return max(float(each["seconds"]) for each in answers)
