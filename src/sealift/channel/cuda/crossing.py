"""Bytes on their way to the GPU: through a ring, straight from pinned memory, packed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sealift.channel.cuda.confidential import SMALL_BYTES
from sealift.channel.cuda.core import Core, Upward
from sealift.channel.cuda.memory import CudaMemory, check_range, own_memory
from sealift.channel.cuda.pinned import PinnedBlock, writable_address
from sealift.channel.cuda.streams import HoldsUp, Joined, Step, Ticket
from sealift.channel.device.device import Part

_ALIGNED: Final = 16


def send(
    core: Core, source: memoryview, memory: CudaMemory, offset: int,
    pinned: Sequence[PinnedBlock],
) -> Ticket | Joined:  # fmt: skip
    """Queue the copy of a buffer."""
    end = offset + source.nbytes
    with core.lock:
        after = memory.hazards.before_write(offset, end)
        path = _straight if _lies_in(pinned, source) else _through_rings
        ticket = path(core, source, memory.address + offset, after)
        memory.hazards.writes(offset, end, ticket)
    return ticket


def send_packed(core: Core, parts: Sequence[Part]) -> list[Ticket]:
    """Queue many small copies as few crossings; on the GPU they are spread out.

    Buffers may change once this has returned.
    """
    tickets = []
    for crossing in _packs(parts, core.crossings.piece_bytes):
        with core.lock:
            tickets.append(_send_pack(core, crossing))
    return tickets


def is_small(part: Part) -> bool:
    """Whether a crossing of its own would cost more than the copy."""
    return memoryview(part[0]).nbytes <= SMALL_BYTES


def _straight(
    core: Core, source: memoryview, address: int, after: Sequence[HoldsUp]
) -> Ticket | Joined:
    way, origin, nbytes = core.up[0], writable_address(source), source.nbytes
    return way.lane.submit(
        lambda stream: core.driver.copy_to_device(address, origin, nbytes, stream),
        after=after,
    )


def _through_rings(
    core: Core, source: memoryview, address: int, after: Sequence[HoldsUp]
) -> Ticket | Joined:
    """One way takes all; several take a piece each in turn."""
    if len(core.up) == 1:
        return core.up[0].lane.submit(
            _sending(core.up[0], address, source), after=after
        )
    size = core.crossings.piece_bytes
    tickets = []
    for number, at in enumerate(range(0, source.nbytes, size)):
        way = core.up[number % len(core.up)]
        step = _sending(way, address + at, source[at : at + size])
        tickets.append(way.lane.submit(step, after=after))
    return Joined(tickets)


def _sending(way: Upward, address: int, source: memoryview) -> Step:
    return lambda stream: way.ring.send(address, source, stream)


def _packs(parts: Sequence[Part], limit: int) -> list[list[Part]]:
    packs: list[list[Part]] = []
    room = 0
    for part in parts:
        nbytes = _padded(memoryview(part[0]).nbytes)
        if not packs or nbytes > room:
            packs.append([])
            room = limit
        packs[-1].append(part)
        room -= nbytes
    return packs


def _send_pack(core: Core, parts: Sequence[Part]) -> Ticket:
    packed = bytearray()
    spread: list[tuple[int, int, int]] = []
    after: list[Any] = []
    for buffer, target, offset in parts:
        source, memory = memoryview(buffer).cast("B"), own_memory(target)
        check_range(memory, offset, source.nbytes)
        after += memory.hazards.before_write(offset, offset + source.nbytes)
        spread.append((memory.address + offset, len(packed), source.nbytes))
        packed += source
        packed += bytes(_padded(source.nbytes) - source.nbytes)
    ticket = _queue_pack(core, packed, spread, after)
    for buffer, target, offset in parts:
        end = offset + memoryview(buffer).nbytes
        own_memory(target).hazards.writes(offset, end, ticket)
    return ticket


def _queue_pack(
    core: Core,
    packed: bytearray,
    spread: Sequence[tuple[int, int, int]],
    after: Sequence[HoldsUp],
) -> Ticket:
    """The pack lands in memory of the engine, and is spread out by copies there."""
    way, landing = core.up[0], core.landing(len(packed))

    def step(stream: Any) -> None:
        way.ring.send(landing, memoryview(packed), stream)
        for to, at, nbytes in spread:
            core.driver.copy_on_device(to, landing + at, nbytes, stream)

    return way.lane.submit(step, after=after)


def _padded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNED) * _ALIGNED


def _lies_in(blocks: Sequence[PinnedBlock], source: memoryview) -> bool:
    if source.readonly or not source.nbytes:
        return False
    start = writable_address(source)
    return any(
        block.address <= start and start + source.nbytes <= block.address + block.nbytes
        for block in blocks
    )
