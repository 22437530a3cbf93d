"""What a batch tells the kernels: one table of records and associated data, one crossing.

Struct ``sealift_record`` of the kernels: offsets, lengths and the nonce of one record, 48
bytes, little endian; the associated data of all follow, each on a multiple of 16 bytes.

The few tables that batches use in turn, on the host and on the GPU.

The verdicts of one batch: asked for once, answered the same for ever.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from sealift.channel.cuda.driver import Driver
from sealift.channel.cuda.plan import RECORD_BYTES, BatchShape
from sealift.channel.cuda.staging import HostBlock, host_block
from sealift.channel.cuda.streams import Ticket
from sealift.channel.device.device import RecordPlace
from sealift.errors import AuthenticationError, SealiftError

_RECORD: Final = struct.Struct("<QQIIQ12sI")
_ALIGNED: Final = 16
assert _RECORD.size == RECORD_BYTES


def shape_of(places: Sequence[RecordPlace]) -> BatchShape:
    """What decides the grid."""
    lengths = [place.plaintext_bytes for place in places]
    return BatchShape(len(lengths), max(lengths, default=0), sum(lengths))


def table_of(places: Sequence[RecordPlace]) -> bytes:
    """The table; associated data begin at ``RECORD_BYTES * len(places)``."""
    records, associated, at = [], [], 0
    for place in places:
        text = place.associated_data
        records.append(
            _RECORD.pack(
                place.sealed_offset, place.plain_offset, place.plaintext_bytes,
                len(text), at, place.nonce, 0,
            )
        )  # fmt: skip
        padded = text.ljust(-(-len(text) // _ALIGNED) * _ALIGNED, b"\0")
        associated.append(padded)
        at += len(padded)
    return b"".join((*records, *associated))


def sealed_hull(places: Sequence[RecordPlace]) -> tuple[int, int]:
    """First and last byte of the sealed records."""
    return (
        min((place.sealed_offset for place in places), default=0),
        max((p.sealed_offset + p.plaintext_bytes + 16 for p in places), default=0),
    )


def plain_hull(places: Sequence[RecordPlace]) -> tuple[int, int]:
    """First and last byte of the plaintexts."""
    return (
        min((place.plain_offset for place in places), default=0),
        max((p.plain_offset + p.plaintext_bytes for p in places), default=0),
    )


_FIRST_BYTES: Final = 32 << 10


class Busy(Protocol):
    """What uses a table."""

    def collect(self) -> object:
        """Wait, and keep what is needed of the table."""


class Table:
    """Room for one batch's records, associated data and verdicts.

    On the host it is a block to copy from, on the GPU the same layout.
    """

    def __init__(self, driver: Driver, *, pinned: bool) -> None:
        self._driver = driver
        self._pinned = pinned
        self._block: HostBlock | None = None
        self._device = 0
        self._text_bytes = 0
        self._num_records = 0
        self.user: Busy | None = None

    def fill(self, text: bytes, num_records: int) -> None:
        """Write the table of a batch; no verdict is genuine yet."""
        block = self._room(len(text) + num_records)
        block.view[: len(text)] = text
        block.view[len(text) : len(text) + num_records] = bytes(num_records)
        self._text_bytes, self._num_records = len(text), num_records

    def places(self) -> dict[str, int]:
        """Addresses on the GPU."""
        return {
            "records": self._device,
            "aad": self._device + RECORD_BYTES * self._num_records,
            "verdicts": self._device + self._text_bytes,
        }

    def send(self, stream: Any) -> None:
        """Queue the one crossing: the table, and verdicts that say no."""
        assert self._block is not None
        nbytes = self._text_bytes + self._num_records
        self._driver.copy_to_device(self._device, self._block.address, nbytes, stream)

    def fetch_verdicts(self, stream: Any) -> None:
        """Queue the way back of the verdicts."""
        assert self._block is not None
        to = self._block.address + self._text_bytes
        origin = self._device + self._text_bytes
        self._driver.copy_to_host(to, origin, self._num_records, stream)

    def verdicts(self) -> bytes:
        """One byte a record, once they were fetched."""
        assert self._block is not None
        end = self._text_bytes + self._num_records
        return bytes(self._block.view[self._text_bytes : end])

    def close(self) -> None:
        """Give the room back."""
        if self._block is not None:
            self._block.close()
            self._driver.free(self._device)
            self._block = None

    def _room(self, nbytes: int) -> HostBlock:
        if self._block is None or self._block.nbytes < nbytes:
            self.close()
            size = max(_FIRST_BYTES, 1 << (nbytes - 1).bit_length())
            self._device = self._driver.allocate(size)
            self._block = host_block(self._driver, size, pinned=self._pinned)
        return self._block


class TableRing:
    """Tables in turn; the one that was used longest ago is waited for."""

    def __init__(self, driver: Driver, count: int, *, pinned: bool) -> None:
        self._tables = [Table(driver, pinned=pinned) for _ in range(count)]
        self._next = 0

    def take(self) -> Table:
        """A table that nobody uses now."""
        table = self._tables[self._next]
        self._next = (self._next + 1) % len(self._tables)
        if table.user is not None:
            with suppress(SealiftError):  # its own user is told when it asks
                table.user.collect()
            table.user = None
        return table

    def close(self) -> None:
        """Give all back."""
        for table in self._tables:
            table.close()


GENUINE = 1


class CudaVerdicts:
    """See ``channel.device.device.Verdicts``.

    Args:
        ticket: Behind the way back of the verdicts.
        read: Reads them, one byte a record; called once.
        refuse: Makes sure that nothing is left of the plaintext of the batch, when a
            record was not genuine. Takes the engine's lock, so it is called under none;
            several threads may call it at once.
    """

    def __init__(
        self,
        ticket: Ticket,
        read: Callable[[], bytes],
        refuse: Callable[[], None],
    ) -> None:
        self._ticket = ticket
        self._read = read
        self._refuse = refuse
        self._lock = threading.Lock()
        self._answer: bytes | None = None
        self._refused = False
        self._failed: SealiftError | None = None

    def collect(self) -> bytes:
        """One byte a record, whatever they say; waits for them.

        Raises:
            UnavailableError: code ``device-lost``.
        """
        with self._lock:
            self._ask()
        if self._answer is None:
            assert self._failed is not None
            raise self._failed
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
            UnavailableError: code ``device-lost``.
        """
        answer = self.collect()
        if answer == bytes([GENUINE]) * len(answer):
            return
        # Not under the lock: whoever takes this table back holds the engine's, which a
        # refusal wants, and waits for this one.
        if not self._refused:
            self._refuse()
            self._refused = True
        raise AuthenticationError
