"""An all-reduce of what lies on GPUs: sealed there, sealed by the host, plain, and torch's gloo.

``sealed`` is the product's: each contribution is sealed on its rank's GPU, crosses the bus,
the carrier and the other bus sealed, and is opened and added on the other GPU. ``plain`` is
the same collective over the same carrier, through the same pinned memory, without sealing.
``host`` copies the gradient to the host as it is, where the processor seals, opens and adds.
``gloo`` is torch's, given the tensor on the GPU. Where there is one GPU all ranks share it,
and the processes' work on it takes turns.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from statistics import median
from typing import Any, Final

import numpy as np

from benchmarks.allreduce import free_port, join
from benchmarks.channel import Plain, pipe_over
from benchmarks.harness import Answer, End, Peer
from benchmarks.ranks import carry, slowest, start_gloo
from benchmarks.report import BenchReport, interleaved, start_report
from sealift.channel.cuda.engine import CudaEngine
from sealift.channel.cuda.opening import open_cuda
from sealift.channel.device.device import DeviceEvent, DeviceTensor, SummingEngine
from sealift.collective.group import DEVICE_SEGMENT_BYTES, Choices, SealedGroup
from sealift.collective.peer import Wire
from sealift.ids import Buffer
from sealift.session.pipe import RECORD_BYTES

MIB: Final = 1 << 20
SIZES: Final = (1 * MIB, 4 * MIB, 25 * MIB, 64 * MIB, 256 * MIB)
SEGMENTS: Final = (1 * MIB, 4 * MIB, 16 * MIB)
ARMS: Final = ("sealed", "plain", "host")
KINDS: Final = ("memfd", "tcp")
WORLDS: Final = (2, 4)
_SLOTS: Final = 2
_BATCH_BYTES: Final = 4 * RECORD_BYTES
_SMALL_REPEATS: Final = 5


class PlainOnDevice(Plain):
    """A carrier that moves a device's tensors as they are, through the host's memory."""

    def use_device(self, engine: SummingEngine) -> None:
        """Copy to and from this device."""
        self._engine = engine
        self._out = [_room(engine, _BATCH_BYTES) for _ in range(_SLOTS)]
        self._back = [_room(engine, _BATCH_BYTES) for _ in range(_SLOTS)]

    def send(self, source: Buffer | DeviceTensor) -> None:
        """One batch is copied while the one before it is sent."""
        if not isinstance(source, DeviceTensor):
            super().send(source)
            return
        waiting: deque[tuple[memoryview, DeviceEvent]] = deque()
        for number, start in enumerate(range(0, source.nbytes, _BATCH_BYTES)):
            if len(waiting) == _SLOTS:
                self._pass_on(*waiting.popleft())
            nbytes = min(_BATCH_BYTES, source.nbytes - start)
            room = self._out[number % _SLOTS][:nbytes]
            at = source.offset + start
            waiting.append((room, self._engine.download(source.memory, at, room)))
        while waiting:
            self._pass_on(*waiting.popleft())

    def receive_into(self, target: bytearray | memoryview | DeviceTensor) -> None:
        """One batch is copied while the next one comes."""
        if not isinstance(target, DeviceTensor):
            super().receive_into(target)
            return
        copies: list[DeviceEvent] = []
        for number, start in enumerate(range(0, target.nbytes, _BATCH_BYTES)):
            if number >= _SLOTS:
                copies[number - _SLOTS].wait()
            room = self._back[number % _SLOTS][: target.nbytes - start]
            super().receive_into(room)
            at = target.offset + start
            copies.append(self._engine.upload(room, target.memory, at))
        for each in copies:
            each.wait()

    def _pass_on(self, room: memoryview, fetched: DeviceEvent) -> None:
        fetched.wait()
        super().send(room)


class DeviceRankEnd(End):
    """A rank of every arm, whose tensor lies on a GPU."""

    def __init__(self, rank: str, world: str) -> None:
        self._rank, self._world = int(rank), int(world)
        self._groups: dict[str, SealedGroup] = {}
        self._closing = ExitStack()
        self._host_room = memoryview(b"")
        self._tensors: dict[int, tuple[DeviceTensor, DeviceTensor]] = {}

    def open_engine(self) -> CudaEngine:
        """The GPU of this rank."""
        return open_cuda()

    def open(self) -> Answer:
        """Open it; what it calls itself."""
        self._engine = self.open_engine()
        self._closing.callback(self._engine.close)
        return {"gpu": self._engine.facts.name}

    def join(self, *socks: socket.socket, arm: str, kind: str, seed: str) -> None:
        """An arm over a socket to each other rank, in their order."""

        def over(carrier: Any, opens: bool) -> Wire:
            if arm == "plain":
                return PlainOnDevice(carrier)
            return pipe_over(carrier, seed, opens=opens)

        wires = carry(self._rank, socks, kind, over)
        for wire in wires.values():
            self._closing.callback(wire.abort)
        choices = Choices(one_phase_bytes=-1, segment_bytes=DEVICE_SEGMENT_BYTES)
        group = SealedGroup(self._rank, wires, choices)
        if arm != "host":
            group.use_device(self._engine)
        self._groups[f"{arm} {kind}"] = group

    def join_gloo(self, port: int) -> Answer:
        """Torch's own, over loopback; where its tensors lie."""
        import torch
        import torch.distributed as dist

        start_gloo(port, self._rank, self._world)
        self._closing.callback(dist.destroy_process_group)
        self._where = "cuda" if torch.cuda.is_available() else "cpu"
        return {"where": self._where}

    def reduce(self, arm: str, nbytes: int, repeats: int, segment: int = 0) -> Answer:
        """Seconds of a call, the median of some; and an element of the last sum."""
        if arm == "gloo":
            return self._reduce_by_gloo(nbytes, repeats)
        engine, group = self._engine, self._groups[arm]
        before = group.choices
        if segment:
            group.choices = Choices(one_phase_bytes=-1, segment_bytes=segment)
        tensor, own = self._tensor(nbytes)
        call: Callable[[], None] = partial(group.all_reduce, tensor)
        if arm.startswith("host"):
            call = partial(self._reduce_here, group, tensor)
        last, spent = bytearray(4), []
        for _ in range(repeats):
            engine.copy(tensor, own).wait()
            group.barrier()
            began = time.perf_counter()
            call()
            engine.download(tensor.memory, nbytes - 4, last).wait()  # it is all there
            spent.append(time.perf_counter() - began)
        group.choices = before
        (found,) = np.frombuffer(last, np.float32)
        return {"seconds": median(spent), "found": float(found)}

    def _reduce_here(self, group: SealedGroup, tensor: DeviceTensor) -> None:
        room = self._rooms(tensor.nbytes)
        self._engine.download(tensor.memory, 0, room).wait()
        group.all_reduce(np.frombuffer(room, np.float32))
        self._engine.upload(room, tensor.memory).wait()

    def _reduce_by_gloo(self, nbytes: int, repeats: int) -> Answer:
        import torch
        import torch.distributed as dist

        tensor, spent, last = torch.empty(nbytes // 4, device=self._where), [], 0.0
        for _ in range(repeats):
            tensor.fill_(self._rank + 1)
            tensor[-1].item()  # waits for the GPU
            dist.barrier()
            began = time.perf_counter()
            dist.all_reduce(tensor)
            last = tensor[-1].item()
            spent.append(time.perf_counter() - began)
        return {"seconds": median(spent), "found": float(last)}

    def _tensor(self, nbytes: int) -> tuple[DeviceTensor, DeviceTensor]:
        """One to reduce, and what it is before."""
        if nbytes not in self._tensors:
            for each in self._tensors.pop(max(self._tensors, default=0), ()):
                each.memory.close()
            fill = np.full(nbytes // 4, self._rank + 1, np.float32)
            made = [self._engine.allocate(nbytes) for _ in range(2)]
            self._engine.upload(fill.data.cast("B"), made[1]).wait()
            tensor, own = (DeviceTensor(m, 0, fill.size, "float32") for m in made)
            self._tensors[nbytes] = tensor, own
        return self._tensors[nbytes]

    def _rooms(self, nbytes: int) -> memoryview:
        if len(self._host_room) < nbytes:
            self._host_room = _room(self._engine, nbytes)
        return self._host_room[:nbytes]

    def close(self) -> None:
        """Hang up, and give the GPU back."""
        self._closing.close()


def run(
    *, quick: bool = False, end: type[End] = DeviceRankEnd, sizes: Sequence[int] = SIZES
) -> BenchReport:
    """Measure; about a minute with ``quick``, else three.

    Raises:
        UnavailableError: if there is no GPU that Sealift can use.
    """
    report = start_report("allreduce")
    report.real = [
        "AES-256-GCM on the GPU",
        "processes on this machine",
        "torch's gloo",
    ]
    for world in WORLDS:
        with ExitStack() as stack:
            peers = [
                stack.enter_context(Peer.start(end, rank, world))
                for rank in range(world)
            ]
            measure(report, peers, sizes, repeats=3 if quick else 9)
    return report


def measure(
    report: BenchReport, peers: Sequence[Peer], sizes: Sequence[int], repeats: int
) -> None:
    """All arms and sizes, with these ranks."""
    gpus = _all(peers, "open")
    world = len(peers)
    about: dict[str, Any] = {"gpu": gpus[0]["gpu"], "ranks": world}
    for kind in KINDS:
        for arm in ARMS:
            join(peers, kind, arm)
    gloo: tuple[str, ...] = ()
    if find_spec("torch") is not None:
        found = _all(peers, "join_gloo", port=free_port())
        about["gloo_on"], gloo = found[0]["where"], ("gloo",)
    for kind in KINDS:
        for size in sizes:
            names = [*(f"{arm} {kind}" for arm in ARMS), *gloo]
            inner = max(1, min(_SMALL_REPEATS, 64 * MIB // size))
            arms = {name: partial(_reduce, peers, name, size, inner) for name in names}
            spent = interleaved(arms, repeats)
            ms = {name.split()[0]: spent[name].median * 1e3 for name in names}
            row = {f"{name}_ms": round(each, 3) for name, each in ms.items()}
            report.rows.append({**about, "where": kind, "mib": size / MIB, **row})
            if size >= 25 * MIB:
                for other in set(ms) - {"sealed"}:
                    name = f"sealed_vs_{other}_{kind}_{world}_worst"
                    report.keep_highest(name, ms["sealed"] / ms[other])
    _measure_segments(report, peers, min(64 * MIB, max(sizes)), repeats)


def _measure_segments(
    report: BenchReport, peers: Sequence[Peer], size: int, repeats: int
) -> None:
    """How long a message should be."""
    arms = {
        f"{segment // MIB} MiB": partial(
            _reduce, peers, "sealed memfd", size, 1, segment=segment
        )
        for segment in SEGMENTS
    }
    spent = interleaved(arms, repeats)
    row = {f"segments_of_{n}_ms": round(s.median * 1e3, 3) for n, s in spent.items()}
    report.rows.append({"ranks": len(peers), "mib": size / MIB, **row})


def _reduce(
    peers: Sequence[Peer], arm: str, nbytes: int, repeats: int, segment: int = 0
) -> float:
    order = {"arm": arm, "nbytes": nbytes, "repeats": repeats, "segment": segment}
    return slowest(_all(peers, "reduce", **order), len(peers))


def _all(peers: Sequence[Peer], order: str, **arguments: Any) -> list[Answer]:
    for peer in peers:
        peer.tell(order, **arguments)
    return [peer.hear() for peer in peers]


def _room(engine: SummingEngine, nbytes: int) -> memoryview:
    block = engine.pinned(nbytes)
    return block.view if block else memoryview(bytearray(nbytes))
