"""The few tables that batches use in turn, on the host and on the GPU."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final, Protocol

from sealift.channel.cuda.driver import Driver
from sealift.channel.cuda.plan import RECORD_BYTES
from sealift.channel.cuda.staging import HostBlock, host_block
from sealift.errors import SealiftError

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
