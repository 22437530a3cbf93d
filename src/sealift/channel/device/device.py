"""What an engine on a device is: memory that is not the host's, and AEADs beside it.

A CUDA engine and the host's stand-in have this in common, and one contract suite. Calls
queue work and return; what they queued runs in the order of the calls, unless it waits
for an event. Whoever waits is told of failures.
An engine is told nonces and associated data; it decides nothing.

Rules for engines:

* ``open`` writes plaintext that is quarantined until its ``Verdicts.wait`` returned.
  When any record of the call fails, the plaintext of the whole call is zeroes before
  ``wait`` raises.
* A key lives in the device's memory until ``DeviceKey.close``, which overwrites it.
* Records of one call do not overlap: they may be opened at once, in any order.

The keys of one stream follow ``RecordOpener``: nonce, associated data and key of a record
follow from the header and its index. In a forked child the keys are gone (rule R8).
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeVar

from sealift.channel.record.record import RecordKeys
from sealift.crypto.aead import NONCE_BYTES, TAG_BYTES, Suite
from sealift.crypto.keys import SecretKey
from sealift.errors import UnavailableError, UsageError
from sealift.ids import Buffer

MAX_ASSOCIATED_BYTES: Final = 256
_TAG_LENGTHS: Final = (0, TAG_BYTES)
BufferView = TypeVar("BufferView", bytes, bytearray, memoryview)


class RecordPlace(NamedTuple):  # made once a record, so it must be cheap
    """One AEAD unit of a call.

    Attributes:
        nonce: 12 bytes.
        associated_data: At most 256 bytes.
        sealed_offset: Where ciphertext and tag lie (or go) in the sealed memory.
        plain_offset: Where the plaintext goes (or lies) in the plain memory.
        plaintext_bytes: Its length; the sealed record has 16 more.
        tag: What its tag must be, or nothing: then the one behind the ciphertext counts.
    """

    nonce: bytes
    associated_data: bytes
    sealed_offset: int
    plain_offset: int
    plaintext_bytes: int
    tag: bytes = b""

    def sealed_in(self, memory: BufferView) -> BufferView:
        """Ciphertext and tag."""
        end = self.sealed_offset + self.plaintext_bytes + TAG_BYTES
        return memory[self.sealed_offset : end]

    def plain_in(self, memory: BufferView) -> BufferView:
        """The plaintext."""
        return memory[self.plain_offset : self.plain_offset + self.plaintext_bytes]


class DeviceEvent(Protocol):
    """A point in the queue of a device."""

    def wait(self) -> None:
        """Wait until everything before it is done.

        Raises:
            UnavailableError: code ``device-lost``, if the device failed meanwhile.
        """


class Verdicts(Protocol):
    """Whether the tags of one ``open`` verified; one answer for all of its records."""

    def wait(self) -> None:
        """Return when every tag verified. May be called again: the answer stays.

        Raises:
            AuthenticationError: if one did not; the plaintext of all is zeroes.
            UnavailableError: code ``device-lost``, if the device failed meanwhile.
        """


class DeviceMemory(Protocol):
    """A range of the device's memory."""

    nbytes: int

    def scrub(self) -> None:
        """Overwrite it with zeroes, after what is queued; return when it is done."""

    def close(self) -> None:
        """Scrub and give back. Idempotent."""


Part = tuple[Buffer, int]
"""A buffer on the host, and the offset in the device's memory where it goes."""


class Crossing(Verdicts, Protocol):
    """Records that cross to the device and are opened there."""

    def wait_copied(self) -> None:
        """Return when the bytes on the host may change.

        Raises:
            UnavailableError: code ``device-lost``.
        """


_ITEM_BYTES: Final = {"float32": 4, "float64": 8}


@dataclass(frozen=True, slots=True)
class DeviceTensor:
    """Numbers that lie end to end in a device's memory.

    Attributes:
        memory: Whose bytes these are.
        offset: Byte of the first number.
        size: How many there are.
        dtype: ``float32`` or ``float64``, as numpy names it.
    """

    memory: DeviceMemory
    offset: int
    size: int
    dtype: str

    @property
    def itemsize(self) -> int:
        """Bytes of a number."""
        return _ITEM_BYTES[self.dtype]

    @property
    def nbytes(self) -> int:
        """Bytes of all."""
        return self.size * self.itemsize

    def __getitem__(self, part: slice) -> DeviceTensor:
        """Some of the numbers, where they lie; slices have a step of 1."""
        start, end, _ = part.indices(self.size)
        at = self.offset + start * self.itemsize
        return DeviceTensor(self.memory, at, max(0, end - start), self.dtype)


class DeviceKey(Protocol):
    """A key that was expanded in the device's memory."""

    suite: Suite

    def close(self) -> None:
        """Overwrite it, after what is queued. Idempotent."""


Group = tuple[DeviceKey, Sequence[RecordPlace]]
"""Records that are sealed under one key."""


class PinnedRoom(Protocol):
    """Host memory that a device reads and writes by itself."""

    view: memoryview

    def close(self) -> None:
        """Overwrite and give back."""


class DeviceEngine(Protocol):
    """A device that seals and opens records in its own memory."""

    name: str

    def suites(self) -> tuple[Suite, ...]:
        """The suites it computes, fastest first."""

    def allocate(self, nbytes: int) -> DeviceMemory:
        """Fresh memory, all zeroes.

        Raises:
            UnavailableError: code ``device-out-of-memory``.
        """

    def key(self, suite: Suite, key: SecretKey) -> DeviceKey:
        """Put a key on the device.

        Raises:
            UnavailableError: code ``no-such-suite``, if it does not compute ``suite``.
        """

    def pinned(self, nbytes: int) -> PinnedRoom | None:
        """Host memory from which copies go by themselves; None where none is proven.

        Raises:
            UnavailableError: code ``no-pinned-memory``, if no more can be pinned.
        """

    def pin(self, memory: memoryview) -> Callable[[], None] | None:
        """Let copies from memory that is there go by themselves, as from ``pinned``.

        What is returned ends that; the memory must live until then. None where pinned
        memory is not proven, or of no use.

        Raises:
            UnavailableError: code ``no-pinned-memory``, if no more can be pinned.
        """

    def upload(self, host: Buffer, to: DeviceMemory, offset: int = 0) -> DeviceEvent:
        """Copy from the host; ``host`` must stay as it is until the event."""

    def download(
        self,
        source: DeviceMemory,
        offset: int,
        out: bytearray | memoryview,
        *,
        after: Sequence[DeviceEvent] = (),
    ) -> DeviceEvent:
        """Copy ``len(out)`` bytes to the host.

        Nothing here waits for verdicts: what is downloaded leaves the device, so the
        caller's gate has passed (``verdict.py``).
        """

    def open(
        self,
        key: DeviceKey,
        sealed: DeviceMemory,
        plain: DeviceMemory,
        places: Sequence[RecordPlace],
        *,
        after: Sequence[DeviceEvent] = (),
    ) -> Verdicts:
        """Open every record at ``places``, once the events in ``after`` are past.

        Verdicts in ``after`` may be waited for before this returns, here as elsewhere.

        Raises:
            UsageError: code ``bad-record-place``, before anything is queued, if a
                place does not lie in both memories.
        """

    def transfer(
        self,
        parts: Sequence[Part],
        sealed: DeviceMemory,
        plain: DeviceMemory,
        groups: Sequence[Group],
        *,
        after: Sequence[DeviceEvent] = (),
    ) -> Crossing:
        """Copy sealed records from the host and open them, one beside the other.

        The same as ``upload`` and ``open``, with one answer for all groups, and as fast
        as the copy alone where the device can do both at once.

        Args:
            parts: Sealed bytes, in the order in which they lie in ``sealed``.
            sealed: Where they go.
            plain: Where the plaintexts go.
            groups: Records in the order of their places, each of them in one part.
            after: What must be past before anything is written.

        Raises:
            UsageError: as ``open``, and if parts or records are not in their order.
                Nothing was opened then; sealed bytes may have been copied.
        """

    def seal(
        self,
        key: DeviceKey,
        plain: DeviceMemory,
        sealed: DeviceMemory,
        places: Sequence[RecordPlace],
        *,
        after: Sequence[DeviceEvent] = (),
    ) -> DeviceEvent:
        """Seal every record at ``places``; nonces are the caller's, fresh for ever.

        Raises:
            UsageError: as ``open``.
        """

    def close(self) -> None:
        """Scrub and give back everything. Idempotent."""


class SharedDeviceMemory(DeviceMemory, Protocol):
    """Memory that another process maps, too, by its descriptor."""

    descriptor: int


class SummingEngine(DeviceEngine, Protocol):
    """A device that also adds up what lies in its memory.

    Each operation is rounded by itself, as IEEE 754 says, so the bits are a processor's
    (of a NaN they need not be). Calls queue work, in the order of the calls.
    """

    def share(self, nbytes: int) -> SharedDeviceMemory:
        """Fresh memory, all zeroes, that another process can map."""

    def add(self, total: DeviceTensor, part: DeviceTensor) -> DeviceEvent:
        """``total += part``.

        Raises:
            UsageError: code ``bad-tensor``, before anything is queued.
        """

    def weigh(
        self, total: DeviceTensor, part: DeviceTensor, factor: float
    ) -> DeviceEvent:
        """``total = part * factor``, the factor in the elements' type; reads ``part`` once."""

    def copy(self, total: DeviceTensor, part: DeviceTensor) -> DeviceEvent:
        """``total = part``."""

    def first_odd(self, tensor: DeviceTensor) -> int | None:
        """Index of the first element that is infinite or no number; waits for it."""


def check_places(
    places: Sequence[RecordPlace], sealed: DeviceMemory, plain: DeviceMemory
) -> None:
    """Every place lies in both memories and no two share a byte of what is written.

    Raises:
        UsageError: code ``bad-record-place``.
    """
    if len(places) == 1 and _lies_within(places[0], sealed.nbytes, plain.nbytes):
        return
    for nonce, associated_data, *_, tag in places:
        if len(nonce) != NONCE_BYTES or len(associated_data) > MAX_ASSOCIATED_BYTES:
            raise _bad_place("nonce or associated data of a wrong length")
        if len(tag) not in _TAG_LENGTHS:
            raise _bad_place("a tag of a wrong length")
    _check_ranges([(p[2], p[4] + TAG_BYTES) for p in places], sealed.nbytes)
    _check_ranges([(p[3], p[4]) for p in places], plain.nbytes)


def check_transfer(
    parts: Sequence[Part],
    sealed: DeviceMemory,
    plain: DeviceMemory,
    groups: Sequence[Group],
) -> None:
    """Every record lies in one of the parts and in both memories; all are in order.

    Raises:
        UsageError: code ``bad-record-place``.
    """
    ranges, byte = iter(parts), 0
    start = end = written = 0
    in_order, plains = True, []
    for _, places in groups:
        for nonce, associated_data, begin, to, length, tag in places:
            if (
                len(nonce) != NONCE_BYTES
                or len(associated_data) > MAX_ASSOCIATED_BYTES
                or len(tag) not in _TAG_LENGTHS
                or length < 0
            ):
                raise _bad_place("nonce, associated data or a tag of a wrong length")
            while begin + length + TAG_BYTES > end:
                start, end = _next_part(ranges, byte, sealed)
                byte = end
            if begin < start:
                raise _bad_place("a record is outside the transfer or out of order")
            start = begin + length + TAG_BYTES
            in_order, written = in_order and to >= written, to + length
            plains.append((to, length))
    if not in_order or written > plain.nbytes:
        _check_ranges(plains, plain.nbytes)
    for part in ranges:
        byte = _next_part(iter((part,)), byte, sealed)[1]


def _next_part(
    ranges: Iterator[Part], byte: int, sealed: DeviceMemory
) -> tuple[int, int]:
    """Start and end of the next part, which begins at ``byte`` at the earliest."""
    buffer, start = next(ranges, (b"", -1))
    if start < byte:
        raise _bad_place("a record is outside the transfer or out of order")
    nbytes = memoryview(buffer).nbytes
    check_range(sealed, start, nbytes)
    return start, start + nbytes


def check_range(memory: DeviceMemory, offset: int, nbytes: int) -> None:
    """The range lies in the memory.

    Raises:
        UsageError: code ``bad-record-place``.
    """
    if offset < 0 or offset + nbytes > memory.nbytes:
        raise UsageError(
            f"{nbytes:,} bytes at {offset:,} are outside the {memory.nbytes:,} bytes",
            code="bad-record-place",
        )


def _lies_within(place: RecordPlace, sealed_bytes: int, plain_bytes: int) -> bool:
    """The same for one record, at the price that one record may cost."""
    nonce, associated_data, start, to, length, tag = place
    return (
        min(start, to, length) >= 0
        and start + length + TAG_BYTES <= sealed_bytes
        and to + length <= plain_bytes
        and len(nonce) == NONCE_BYTES
        and len(associated_data) <= MAX_ASSOCIATED_BYTES
        and len(tag) in _TAG_LENGTHS
    )


def _check_ranges(ranges: list[tuple[int, int]], limit: int) -> None:
    end = 0
    if len(ranges) > 1:
        ranges.sort()
    for start, length in ranges:
        if start < end or length < 0:
            raise _bad_place("two records overlap, or one begins before the memory")
        end = start + length
    if end > limit:
        raise _bad_place(f"a record ends at {end:,}, and the memory at {limit:,}")


def _bad_place(why: str) -> UsageError:
    return UsageError(
        "a record is outside the device's memory", why=why, code="bad-record-place"
    )


def device_lost(why: str) -> UnavailableError:
    """The device failed, or was unplugged, in the middle of work."""
    return UnavailableError("the device stopped working", why=why, code="device-lost")


def no_pinned_memory(nbytes: int, why: str) -> UnavailableError:
    """The host cannot keep ``nbytes`` more where a device reads them."""
    return UnavailableError(
        f"the host has no room for {nbytes:,} bytes of pinned memory",
        why=why,
        code="no-pinned-memory",
    )


def device_out_of_memory(nbytes: int, why: str = "") -> UnavailableError:
    """There is no room for ``nbytes`` more."""
    return UnavailableError(
        f"the device has no room for {nbytes:,} bytes",
        why=why,
        code="device-out-of-memory",
    )


class DeviceKeys:
    """Segment keys of one stream, put on the device when they are needed.

    Args:
        keys: The stream's keys; whoever made them verified the header.
        suite: The suite in its header.
        engine: The device.
    """

    def __init__(self, keys: RecordKeys, suite: Suite, engine: DeviceEngine) -> None:
        self._keys = keys
        self._suite = suite
        self._engine = engine
        self._segment: tuple[int, DeviceKey, int] | None = None
        # Kept a segment longer: records that are queued may be under it.
        self._former: DeviceKey | None = None
        self._process = os.getpid()
        _LIVE.add(self)

    def place(
        self,
        index: int,
        sequence: int,
        *,
        final: bool,
        sealed_offset: int,
        plain_offset: int,
        plaintext_bytes: int,
    ) -> tuple[DeviceKey, RecordPlace]:
        """Key and place of record ``index``, for ``engine.open`` or ``engine.seal``.

        Records of one call need one key: those of one segment of 64 GiB.
        """
        key, mask = self._of_segment(self._keys.segment_number(index))
        nonce = (mask ^ sequence).to_bytes(NONCE_BYTES, "big")
        associated_data = self._keys.associated_data(index, final=final)
        return key, RecordPlace(
            nonce, associated_data, sealed_offset, plain_offset, plaintext_bytes
        )

    def close(self) -> None:
        """Take the keys off the device."""
        segment, self._segment = self._segment, None
        former, self._former = self._former, None
        for key in (segment and segment[1], former):
            if key is not None:
                key.close()

    def forget(self) -> None:
        """In a forked child: the device is the parent's, the key must not be used."""
        self._segment = self._former = None

    def _of_segment(self, number: int) -> tuple[DeviceKey, int]:
        segment = self._segment  # another thread may close this meanwhile
        if segment is None or segment[0] != number:
            segment = self._segment = self._on_device(number)
        return segment[1], segment[2]

    def _on_device(self, number: int) -> tuple[int, DeviceKey, int]:
        secret, mask = self._keys.segment_secret(number)  # raises in a forked child
        if os.getpid() != self._process:
            raise UsageError("a device cannot be used in a forked process")
        if self._former is not None:
            self._former.close()
        self._former = self._segment and self._segment[1]
        try:
            return number, self._engine.key(self._suite, secret), mask
        finally:
            secret.wipe()


_LIVE: weakref.WeakSet[DeviceKeys] = weakref.WeakSet()


def _forget_after_fork() -> None:
    for keys in list(_LIVE):
        keys.forget()


os.register_at_fork(after_in_child=_forget_after_fork)
