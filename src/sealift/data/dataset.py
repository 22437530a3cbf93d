"""A sealed table as a map-style dataset: rows by index, opened as they are needed.

``len(dataset)``, ``dataset[i]`` and the batched ``__getitems__`` are what
``torch.utils.data.DataLoader`` asks for; torch itself is not needed. Opened records are
kept in a small cache and scrubbed when they leave it.
Guarantees: no row is returned unless its record's tag verified, and, with a card, unless
the record is the content that was committed to (rule C5).
Not promised: use in other processes. Data keys neither pickle nor survive a fork, so a
``DataLoader`` over it has ``num_workers=0``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from sealift.channel.commitment import VerifiedLeaves, verify_leaves
from sealift.channel.sealedfile import SealedFileReader
from sealift.crypto.hash import labelled
from sealift.crypto.keys import SecretKey
from sealift.data.card import ResourceCard
from sealift.data.rows import Array, unpack
from sealift.data.schema import Schema
from sealift.errors import MalformedError, UsageError

CACHED_RECORDS: Final = 8

Row = dict[str, Array]


class SealedDataset:
    """Random access to the rows of a sealed file.

    Args:
        path: The sealed file.
        schema: What a row is; a card's own when ``card`` is given.
        key: The data key.
        card: The resource's card; every record opened is checked against it.
        cached_records: How many opened records are kept.

    Raises:
        UsageError: without a schema or a card.
        UnavailableError: if the file cannot be read.
        MalformedError: if it is not a whole sealed file, or not one of such rows.
        AuthenticationError: if it was sealed with another key.
        IntegrityError: if it is not the file that the card describes.
    """

    def __init__(
        self,
        path: Path,
        key: SecretKey,
        *,
        schema: Schema | None = None,
        card: ResourceCard | None = None,
        cached_records: int = CACHED_RECORDS,
    ) -> None:
        self.schema = _schema_of(schema, card)
        self._leaves = leaves_of(card, key)
        self._cache: OrderedDict[int, bytearray] = OrderedDict()
        self._cached_records = max(1, cached_records)
        self._reader = SealedFileReader(path, key)
        try:
            self._check_sizes(path, card)
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return self._reader.total_bytes // self.schema.row_bytes

    def __getitem__(self, index: int) -> Row:
        """Row ``index``: per field an array of its shape, or a numpy number.

        Raises:
            IndexError: if there is no such row.
            AuthenticationError: if its record was changed.
            IntegrityError: if its record is not what the card committed to.
        """
        block = unpack(self._row(index), self.schema)
        return {name: column[0] for name, column in block.items()}

    def __getitems__(self, indices: Sequence[int]) -> list[Row]:
        """``[self[i] for i in indices]``, for ``DataLoader``."""
        return [self[index] for index in indices]

    def rows(self, indices: Sequence[int] | NDArray[np.int64]) -> Row:
        """Many rows at once: arrays of shape ``(len(indices), *field.shape)``."""
        raw = bytearray().join(self._row(int(index)) for index in indices)
        return unpack(raw, self.schema)

    def __iter__(self) -> Iterator[Row]:
        return (self[index] for index in range(len(self)))

    def shuffled(self, *, seed: int, epoch: int) -> NDArray[np.int64]:
        """All row indices, shuffled so that reading them opens each record once.

        Records are shuffled, then rows among as many records as the cache holds: a
        little less random than ``loader.batch_order``, and much faster on large files.
        """
        digest = labelled("sealift read order", str(seed).encode(), str(epoch).encode())
        generator = np.random.Generator(np.random.PCG64(list(digest)))
        starts = generator.permutation(self._reader.record_count)
        windows = [
            generator.permutation(np.concatenate([self._rows_of(r) for r in window]))
            for window in np.split(
                starts, range(self._cached_records, len(starts), self._cached_records)
            )
        ]
        return np.concatenate(windows)

    def close(self) -> None:
        """Close the file, scrub the cache, forget the key."""
        while self._cache:
            _scrub(self._cache.popitem()[1])
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _row(self, index: int) -> bytearray:
        count = len(self)
        if not -count <= index < count:
            raise IndexError(f"row {index} of {count}")
        start = (index % count) * self.schema.row_bytes
        end = start + self.schema.row_bytes
        raw = bytearray()
        while start < end:
            record, skip = divmod(start, self._reader.header.record_bytes)
            part = memoryview(self._record(record))[skip : skip + end - start]
            raw += part
            start += len(part)
        return raw

    def _record(self, index: int) -> bytearray:
        if index in self._cache:
            self._cache.move_to_end(index)
            return self._cache[index]
        opened = bytearray(self._reader.open_record(index))
        if self._leaves is not None:
            self._leaves.verify(index, opened)
        if len(self._cache) >= self._cached_records:
            _scrub(self._cache.popitem(last=False)[1])
        self._cache[index] = opened
        return opened

    def _rows_of(self, record: int) -> NDArray[np.int64]:
        """The rows that start in ``record``."""
        row_bytes, record_bytes = (
            self.schema.row_bytes,
            self._reader.header.record_bytes,
        )
        first = -(-record * record_bytes // row_bytes)
        end = -(-(record + 1) * record_bytes // row_bytes)
        return np.arange(first, min(end, len(self)), dtype=np.int64)

    def _check_sizes(self, path: Path, card: ResourceCard | None) -> None:
        if self._reader.total_bytes % self.schema.row_bytes:
            raise MalformedError(
                f"{path.name} does not hold rows of {self.schema.row_bytes} bytes",
                fix="Use the schema that it was sealed with",
                code="bad-rows",
            )
        if card is not None:
            check_card_fits(self._reader, card, path)


def check_card_fits(reader: SealedFileReader, card: ResourceCard, path: Path) -> None:
    """Demand that file and card have the same sizes.

    Raises:
        MalformedError: if they do not belong together.
    """
    header, entry = reader.header, card.resource
    sizes = (header.total_bytes, header.record_bytes)
    if sizes != (entry.total_bytes, entry.record_bytes):
        raise MalformedError(
            f"{path.name} is not the file that the card of {card.name} describes",
            fix="Use the card that was written beside it",
            code="bad-card",
        )


def leaves_of(card: ResourceCard | None, key: SecretKey) -> VerifiedLeaves | None:
    """The card's leaves, once they hash to its commitment under ``key``.

    Raises:
        IntegrityError: if they do not.
    """
    if card is None:
        return None
    return verify_leaves(card.leaves, card.commitment, data_key=key)


def _schema_of(schema: Schema | None, card: ResourceCard | None) -> Schema:
    if card is not None:
        return card.schema
    if schema is None:
        raise UsageError("a sealed dataset needs a schema or a card")
    return schema


def _scrub(record: bytearray) -> None:
    record[:] = bytes(len(record))
