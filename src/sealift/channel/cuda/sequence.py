"""Sealing on the GPU with nonces that advance in the GPU's own memory (rule C8).

A captured graph replays its launches with the arguments they were captured with. Were
the nonce one of them, the second replay would use it again. So sequence and index lie in
device memory, and a kernel that is part of every sealing takes the next ones. The host
never sets them back: a sealer begins where its stream is, and is thrown away with it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

from sealift.channel.cuda.batches import Batch
from sealift.channel.cuda.driver import Grid
from sealift.channel.cuda.engine import CudaEngine
from sealift.channel.cuda.memory import own_memory
from sealift.channel.cuda.plan import RECORD_BYTES, SEQUENCE_BYTES, Launch, Plan, Word32
from sealift.channel.cuda.streams import Ticket
from sealift.channel.cuda.tables import plain_hull, sealed_hull, shape_of, table_of
from sealift.channel.device import check_places
from sealift.channel.frame import PREFIX_BYTES
from sealift.crypto.aead import NONCE_BYTES
from sealift.errors import UsageError

_STATE: Final = struct.Struct("<QQQII12sI")
_THREADS: Final = 128
_MOST_RECORDS: Final = 1 << 16
assert _STATE.size == SEQUENCE_BYTES


@dataclass(frozen=True, slots=True)
class SealerStart:
    """Where a sealer begins.

    Attributes:
        mask: The segment's mask; the nonce is it XOR (lane, sequence).
        lane: The one lane that this sealer alone writes.
        sequence: Of the first record.
        index: Of the first record.
        limit: Sequences from here on are refused: the end of the key's segment.
    """

    mask: bytes
    lane: int
    sequence: int
    index: int
    limit: int

    def encode(self) -> bytes:
        """As the kernels read it."""
        if len(self.mask) != NONCE_BYTES or not 0 <= self.lane < 1 << 31:
            raise UsageError("a mask has 12 bytes, and a lane fits in 31 bits")
        return _STATE.pack(
            self.sequence, self.index, self.limit, self.lane, 0, self.mask, 0
        )


@dataclass(frozen=True, slots=True)
class SealerState:
    """Where a sealer is: what it seals next, and whether it refused."""

    sequence: int
    index: int
    refused: bool


def sequence_plan(num_records: int) -> Plan:
    """The kernel that takes the next nonces for a batch."""
    launch = Launch(
        "sealift_sequence",
        Grid(1, _THREADS),
        ("records", Word32(num_records), "aad", "sequence", "prefixes"),
    )
    return Plan((launch,))


class DeviceSealer:
    """Seals the same places again and again, each time under the next nonces.

    After ``seal`` (or a replay), download the sealed records and ``prefixes``; what was
    refused has prefixes of zeroes. One sealer a lane.

    Args:
        engine: The engine.
        batch: The segment's key, the memories, and places as for ``seal`` of the
            engine; their nonces are not used, and the index in their associated data
            (bytes 32 to 40) is replaced.
        start: Where to begin; taken from a fresh stream, never from a checkpoint.
    """

    def __init__(self, engine: CudaEngine, batch: Batch, start: SealerStart) -> None:
        check_places(batch.places, batch.sealed, batch.plain)
        if not 0 < len(batch.places) <= _MOST_RECORDS:
            raise UsageError(f"a sealer seals 1 to {_MOST_RECORDS} records at a time")
        self._engine, self._core = engine, engine.core
        self._key, self._places = batch.key, tuple(batch.places)
        self._plain, self._sealed = own_memory(batch.plain), own_memory(batch.sealed)
        self._plan = self._whole_plan()
        self._graphs: list[Any] = []
        self._table = engine.allocate(len(text := table_of(batch.places)))
        self._state = engine.allocate(SEQUENCE_BYTES)
        self.prefixes = engine.allocate(PREFIX_BYTES * len(batch.places))
        engine.upload(text, self._table).wait()
        engine.upload(start.encode(), self._state).wait()

    def seal(self) -> Ticket:
        """Seal what lies in the plain memory now."""
        return self._submit(self._run)

    def capture(self) -> Any:
        """A graph of what ``seal`` does; ``replay`` runs it, until ``close``."""
        self._require_open()

        def note(stream: Any) -> None:
            self._core.prepare(self._plan)  # allocates and loads: not to be captured
            self._core.driver.begin_capture(stream)
            try:
                self._run(stream)
            finally:
                self._graphs.append(self._core.driver.end_capture(stream))

        with self._core.lock:
            self._core.crypto.submit(note).wait()
            return self._graphs[-1]

    def replay(self, graph: Any) -> Ticket:
        """Seal by a captured graph."""
        return self._submit(lambda stream: self._core.driver.replay(graph, stream))

    def state(self) -> SealerState:
        """Where it is, after all that is queued."""
        raw = bytearray(SEQUENCE_BYTES)
        self._engine.download(self._state, 0, raw).wait()
        sequence, index, _, _, refused, _, _ = _STATE.unpack(raw)
        return SealerState(sequence, index, bool(refused))

    def close(self) -> None:
        """Give its memory and graphs back; the lane is not used again."""
        for memory in (self._table, self._state, self.prefixes):
            memory.close()  # waits for what runs
        while self._graphs:
            self._core.driver.release(self._graphs.pop())

    def _require_open(self) -> None:
        """A graph holds addresses: of a key that is gone, it would seal under zeroes."""
        self._key.require_open()
        for memory in (self._plain, self._sealed, self._table, self._state):
            memory.require_open()

    def _whole_plan(self) -> Plan:
        core, shape = self._core, shape_of(self._places)
        sealing = core.kernels.seal(self._key.suite, shape, core.driver.facts)
        taking = sequence_plan(len(self._places))
        return Plan((*taking.launches, *sealing.launches), sealing.scratch_bytes)

    def _run(self, stream: Any) -> None:
        records = self._table.address
        places = {
            "records": records,
            "aad": records + RECORD_BYTES * len(self._places),
            "key": self._key.memory.address,
            "plain": self._plain.address,
            "sealed": self._sealed.address,
            "sequence": self._state.address,
            "prefixes": self.prefixes.address,
        }
        self._core.run(self._plan, places, stream)

    def _submit(self, step: Any) -> Ticket:
        plain, sealed = plain_hull(self._places), sealed_hull(self._places)
        with self._core.lock:
            self._require_open()
            ticket = self._core.crypto.submit(
                step,
                after=[
                    *self._plain.hazards.before_read(*plain),
                    *self._sealed.hazards.before_write(*sealed),
                    *self.prefixes.hazards.before_write(0, self.prefixes.nbytes),
                ],
            )
            self._plain.hazards.reads(*plain, ticket)
            self._sealed.hazards.writes(*sealed, ticket)
            for memory in (self.prefixes, self._table, self._state):
                memory.hazards.writes(0, memory.nbytes, ticket)
            self._key.memory.hazards.reads(0, self._key.memory.nbytes, ticket)
        return ticket
