"""Keys in a GPU's memory, and the batches of records that are opened and sealed under them.

One step of the crypto lane is one batch: the table crosses, kernels run, and if a tag of
the batch is wrong, a last kernel zeroes the plaintext of all of it before anything that
was queued later can read it. The host then reads the zeroes back. The verdicts of a batch
are asked for once, and answered the same for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from sealift.channel.cuda.core import Core
from sealift.channel.cuda.driver import Grid
from sealift.channel.cuda.memory import CudaMemory
from sealift.channel.cuda.plan import KernelPlan, Launch, Word32, shape_of, table_of
from sealift.channel.cuda.staging import BatchTable, HostBlock
from sealift.channel.cuda.streams import HoldsUp, Ticket, on_device
from sealift.channel.device.device import DeviceEvent, DeviceKey, RecordPlace
from sealift.crypto.aead import TAG_BYTES, Suite
from sealift.crypto.keys import KEY_BYTES, TOKEN, SecretKey
from sealift.errors import (
    AuthenticationError,
    SealiftError,
    UnavailableError,
    UsageError,
    require_value,
)

_THREADS: Final = 128
_MOST_BLOCKS: Final = 512  # each reads all verdicts
GENUINE: Final = 1
_Use = tuple[CudaMemory, tuple[int, int]]
"""A memory, and start and end of the range of it that a batch uses."""


class CudaKey:
    """Round keys, powers and whatever else the kernels make of a key.

    ``close`` overwrites it on the GPU and reads that back; so does the engine's own
    close, also when the process ends. On a GPU that was lost nothing can be shown.
    """

    def __init__(self, suite: Suite, memory: CudaMemory) -> None:
        self.suite = suite
        self.memory = memory
        self._closed = False

    def require_open(self) -> None:
        """Refuse after ``close``."""
        if self._closed:
            raise UsageError("this key was removed from the device", code="dead-key")

    def close(self) -> None:
        """Overwrite it after what is queued, and read that back. Idempotent.

        Raises:
            IntegrityError: if it is not zeroes then.
        """
        if not self._closed:
            self._closed = True
            self.memory.close()


def own_key(key: DeviceKey) -> CudaKey:
    """The key, if it is on a GPU."""
    if not isinstance(key, CudaKey):
        raise UsageError("this key is on another device")
    key.require_open()
    return key


def expand_key(core: Core, suite: Suite, key: SecretKey) -> CudaKey:
    """Put a key on the GPU.

    The 32 bytes cross the bus as they are: outside of confidential mode whoever reads
    the bus reads them. They are overwritten on the host and on the GPU at once.
    """
    if suite not in core.kernels.suites():
        raise UnavailableError(
            f"engine cuda does not support {suite.name}", code="no-such-suite"
        )
    if len(key) != KEY_BYTES:
        raise UsageError(f"an AEAD key must have {KEY_BYTES} bytes")
    expanded = core.allocate(core.kernels.key_bytes(suite))
    try:
        _expand(core, suite, key, expanded)
    except BaseException:
        expanded.close()
        raise
    return CudaKey(suite, expanded)


def _expand(core: Core, suite: Suite, key: SecretKey, expanded: CudaMemory) -> None:
    raw = core.allocate(KEY_BYTES)
    block = HostBlock(core.driver, KEY_BYTES, pinned=core.copies.pinned)
    try:
        block.view[:] = key.reveal(TOKEN)
        plan = core.kernels.expand(suite)
        places = {"raw_key": raw.address, "key": expanded.address}

        def put(stream: object) -> None:
            core.driver.copy_to_device(raw.address, block.address, KEY_BYTES, stream)
            core.run(plan, places, stream)

        core.crypto.submit(put).wait()
    finally:
        block.close()
        raw.close()


class CudaVerdicts:
    """See ``channel.device.device.Verdicts``.

    Args:
        ticket: Behind the way back of the verdicts.
        read: Reads them, one byte a record; called once.
        refuse: Makes sure that nothing is left of the plaintext of the batch, when a
            record was not genuine or nobody can say whether it is. Takes the engine's lock, so it is called under none;
            several threads may call it at once.
    """

    def __init__(
        self, ticket: DeviceEvent, read: Callable[[], bytes], refuse: Callable[[], None]
    ) -> None:
        self._ticket = ticket
        self._read = read
        self._refuse = refuse
        self._lock = threading.Lock()
        self._answer: bytes | None = None
        self._refused = False
        self._failed: SealiftError | None = None

    def wait_copied(self) -> None:
        """Return when the bytes on the host may change."""
        self._ticket.wait()

    def collect(self) -> bytes:
        """One byte a record, whatever they say; waits for them.

        Raises:
            UnavailableError: code ``device-lost``.
        """
        with self._lock:
            self._ask()
        if self._answer is None:
            raise require_value(self._failed)
        return self._answer

    def _ask(self) -> None:
        if self._answer is None and self._failed is None:
            try:
                self._ticket.wait()
                self._answer = self._read()
            except SealiftError as error:
                self._failed = error

    def wait(self) -> None:
        """Return when every tag verified (see ``channel.device.device.Verdicts``).

        Raises:
            AuthenticationError: if one did not; the plaintext of all is zeroes.
            IntegrityError: if the plaintext of a refused batch could not be removed.
            UnavailableError: if it is not known; a GPU that works has none of the
                plaintext then.
        """
        try:
            answer = self.collect()
        except UnavailableError:
            with suppress(UnavailableError):  # a lost GPU has lost the plaintext, too
                self._refuse()
            raise
        if answer == bytes([GENUINE]) * len(answer):
            return
        # Not under the lock: whoever takes this table back holds the engine's, which a
        # refusal wants, and waits for this one.
        if not self._refused:
            self._refuse()
            self._refused = True
        raise AuthenticationError


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Records, the key for them, and the memories they lie in."""

    key: CudaKey
    sealed: CudaMemory
    plain: CudaMemory
    places: Sequence[RecordPlace]

    def uses(self, *, opens: bool) -> tuple[_Use, _Use]:
        """What is read, and what is written."""
        spans = [(p.sealed_offset, p.plaintext_bytes + TAG_BYTES) for p in self.places]
        sealed = (self.sealed, _hull(spans))
        spans = [(p.plain_offset, p.plaintext_bytes) for p in self.places]
        plain = (self.plain, _hull(spans))
        return (sealed, plain) if opens else (plain, sealed)

    def require_open(self) -> None:
        """Asked under the engine's lock, after which another thread's close waits."""
        self.key.require_open()
        self.sealed.require_open()
        self.plain.require_open()


def _hull(spans: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """First and last byte of ranges (start, length)."""
    return min(start for start, _ in spans), max(sum(span) for span in spans)


def open_batch(
    core: Core, batch: RecordBatch, after: Sequence[DeviceEvent]
) -> CudaVerdicts:
    """Queue a batch to open."""
    first = on_device(after)
    if not batch.places:
        return CudaVerdicts(core.crypto.submit(nothing, after=first), bytes, nothing)
    shape = shape_of(batch.places)
    plan = core.kernels.open(batch.key.suite, shape, core.driver.facts)
    both = KernelPlan((*plan.launches, refusal(shape.num_records)), plan.scratch_bytes)
    with core.lock:
        table = core.tables.take()
        ticket = _submit(core, batch, table, both, first, opens=True)
        answer = ticket
        if core.copies.threads:  # there a copy back keeps its lane waiting
            answer = core.answers.submit(table.fetch_verdicts, after=[ticket])
        verdicts = CudaVerdicts(
            answer,
            table.verdicts,
            lambda: prove_refused(core, batch.plain, batch.places, ticket),
        )
        table.settle = verdicts.collect
    return verdicts


def seal_batch(core: Core, batch: RecordBatch, after: Sequence[DeviceEvent]) -> Ticket:
    """Queue a batch to seal."""
    first = on_device(after)
    if not batch.places:
        return core.crypto.submit(nothing, after=first)
    shape = shape_of(batch.places)
    plan = core.kernels.seal(batch.key.suite, shape, core.driver.facts)
    with core.lock:
        table = core.tables.take()
        ticket = _submit(core, batch, table, plan, first, opens=False)
        table.settle = ticket.wait
    return ticket


def refusal(num_records: int) -> Launch:
    """Zero the plaintext of the whole batch if a record of it was refused."""
    return Launch(
        "sealift_refuse_batch",
        Grid(min(num_records, _MOST_BLOCKS), _THREADS),
        ("records", Word32(num_records), "verdicts", "plain"),
    )


def _submit(
    core: Core,
    batch: RecordBatch,
    table: BatchTable,
    plan: KernelPlan,
    after: Sequence[HoldsUp],
    *,
    opens: bool,
) -> Ticket:
    batch.require_open()
    table.fill(table_of(batch.places), len(batch.places))
    (read, being_read), (written, being_written) = batch.uses(opens=opens)
    waits: list[HoldsUp] = [*after, *read.hazards.before_read(*being_read)]
    waits += written.hazards.before_write(*being_written)
    places = {
        **table.places(),
        "key": batch.key.memory.address,
        "sealed": batch.sealed.address,
        "plain": batch.plain.address,
    }

    def step(stream: Any) -> None:
        table.send(stream)
        core.run(plan, places, stream)
        if opens and not core.copies.threads:
            table.fetch_verdicts(stream)

    ticket = core.crypto.submit(step, after=waits)
    read.hazards.reads(*being_read, ticket)
    written.hazards.writes(*being_written, ticket)
    batch.key.memory.hazards.reads(0, batch.key.memory.nbytes, ticket)
    return ticket


def prove_refused(
    core: Core, plain: CudaMemory, places: Sequence[RecordPlace], ticket: Ticket
) -> None:
    """Read the zeroes back, and overwrite again what is not zero.

    What a later call has queued to write there since is not this batch's plaintext.
    """
    ranges = plain_ranges(places)
    with core.lock:
        ours = [r for r in ranges if _last_writer_is(plain, r, ticket)]
        if any(core.count_nonzero(plain, *each) for each in ours):
            core.scrub_ranges(plain, ours)


def plain_ranges(places: Sequence[RecordPlace]) -> list[tuple[int, int]]:
    """Start and end of each record's plaintext."""
    return [(p.plain_offset, p.plain_offset + p.plaintext_bytes) for p in places]


def nothing(*_: Any) -> None:
    """A call without records."""


def _last_writer_is(memory: CudaMemory, span: tuple[int, int], ticket: Ticket) -> bool:
    try:
        memory.require_open()
    except SealiftError:
        return False  # it was scrubbed when it was given back
    return memory.hazards.was_last_written_by(*span, ticket)
