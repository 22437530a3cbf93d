"""Sealed shards as a map-style dataset: rows by index, opened as they are needed.

``len(dataset)``, ``dataset[i]`` and the batched ``__getitems__`` are what
``torch.utils.data.DataLoader`` asks for; torch itself is not needed. Opened records are
kept in a small cache and scrubbed when they leave it.
Guarantees: no row is returned unless its record's tag verified, and, with a card, unless
the record is the content that was committed to (rule C5).
Not promised: use in other processes. Data keys neither pickle nor survive a fork, so a
``DataLoader`` over it has ``num_workers=0``; ``SealedDataLoader`` has workers.

An owner's data keys, for its own training at home: vault and identity to keys.
"""

from __future__ import annotations

import operator
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from sealift.crypto.identity import load_identity
from sealift.data.schedule.order import EpochOrder, OrderOptions
from sealift.data.schema.card import ResourceCard
from sealift.data.schema.rows import Array, unpack
from sealift.data.schema.schema import Schema
from sealift.data.shards.shard import OpenShards
from sealift.data.shards.shardset import Keys, ShardOptions, ShardPath, open_shards
from sealift.data.urls import StorageOptions
from sealift.errors import UsageError
from sealift.release.agreement import Resource
from sealift.release.broker.stores import opened_vault
from sealift.release.files import read_secret_line
from sealift.release.vault.vault import Vault

CACHED_RECORDS: Final = 8
OPEN_SHARDS: Final = 64

Row = dict[str, Array]


class SealedDataset:
    """Random access to the rows of sealed shards.

    For ``with``, or ``close``. Dropped without it files are closed as well, and Python's
    development mode says so (``ResourceWarning``), but the cache is not scrubbed.

    Args:
        shards: A path or URL, one with ``*``, or several of them in their order.
        keys: The data key; or the keys by resource, or a vault.
        schema: What a row is. Without it, and without ``card``, the card beside each
            shard says it; together with ``card`` or ``agreed``, both must say the
            same. Whoever says it, it must be the columns that the file was sealed with.
            Alone, tags are verified, no commitment is: a card is not needed.
        card: The card of a single shard; every record is checked against it.
        agreed: Resources of a signed agreement; every card must be one of them.
        relocate: Where shards are that moved, by their names.
        storage_options: For fsspec, if places are URLs.
        cached_records: How many opened records are kept for access by index.

    Raises:
        UsageError: if nothing says what a row is.
        UnavailableError: if a shard cannot be read; ``extra-missing`` for a URL whose
            package is not installed.
        MalformedError: if it is not a whole sealed file, or not one of such rows;
            ``schema-mismatch`` if it was sealed with other columns.
        AuthenticationError: if it was sealed with another key.
        IntegrityError: if it is not the file that its card describes.
    """

    def __init__(
        self,
        shards: ShardPath | Sequence[ShardPath],
        keys: Keys,
        *,
        schema: Schema | None = None,
        card: ResourceCard | None = None,
        agreed: Sequence[Resource] = (),
        relocate: Mapping[str, ShardPath] | None = None,
        storage_options: StorageOptions | None = None,
        cached_records: int = CACHED_RECORDS,
    ) -> None:
        options = ShardOptions(
            schema=schema,
            card=card,
            agreed=agreed,
            relocate=relocate,
            storage=storage_options,
        )
        self.shards = open_shards(shards, keys, options)
        self.schema = self.shards.schema
        self._process = os.getpid()
        found = self.shards
        self._readers = OpenShards(found.shards, found.leaves, OPEN_SHARDS)
        self._cache: OrderedDict[tuple[int, int], bytearray] = OrderedDict()
        self._cached_records = max(1, cached_records)
        self._closed = False

    def __len__(self) -> int:
        return self.shards.layout.rows

    def __repr__(self) -> str:
        columns = ", ".join(
            f"{each.name}: {each.dtype}{list(each.shape) if each.shape else ''}"
            for each in self.schema.fields
        )
        places = [shard.name for shard in self.shards.shards]
        named = places[0] if len(places) == 1 else f"{len(places)} shards"
        return f"SealedDataset({named}, {len(self)} rows of {columns})"

    def __getitem__(self, index: int | slice) -> Row:
        """Row ``index``: per field an array of its shape, or a numpy number.

        A slice is many rows at once, as ``rows`` gives them.

        Raises:
            TypeError: if it is neither.
            IndexError: if there is no such row.
            AuthenticationError: if its record was changed.
            IntegrityError: if its record is not what the card committed to.
        """
        if isinstance(index, slice):
            return self.rows(range(*index.indices(len(self))))
        block = unpack(self._row(operator.index(index)), self.schema)
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

        Records are shuffled, then rows among as many records as the cache holds.
        """
        layout = self.shards.layout
        record_bytes = max(shard.record_bytes for shard in layout.shards)
        window_bytes = self._cached_records * record_bytes
        options = OrderOptions(shuffle=True, seed=seed, window_bytes=window_bytes)
        order = EpochOrder(layout, options, epoch)
        return np.concatenate([order.row_numbers(w) for w in order.windows()])

    def close(self) -> None:
        """Close the files, scrub the cache, forget what was derived from the keys."""
        self._closed = True
        while self._cache:
            _scrub(self._cache.popitem()[1])
        self._readers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise _other_process()

    def demand_usable(self) -> None:
        """Demand that it is open and that this is its process.

        Raises:
            UsageError: ``dead-dataset`` or ``forked-dataset``.
        """
        if os.getpid() != self._process:
            raise _other_process()
        if self._closed:
            raise UsageError("this sealed dataset is closed", code="dead-dataset")

    def _row(self, index: int) -> bytearray:
        self.demand_usable()
        count = len(self)
        if not -count <= index < count:
            raise IndexError(f"the dataset of {count:,} rows has no row {index}")
        shard, row = self.shards.layout.place(index % count)
        record_bytes = self.shards.layout.shards[shard].record_bytes
        start = row * self.schema.row_bytes
        end = start + self.schema.row_bytes
        raw = bytearray()
        while start < end:
            record, skip = divmod(start, record_bytes)
            part = memoryview(self._record(shard, record))[skip : skip + end - start]
            raw += part
            start += len(part)
        return raw

    def _record(self, shard: int, index: int) -> bytearray:
        place = (shard, index)
        if place in self._cache:
            self._cache.move_to_end(place)
            return self._cache[place]
        reader = self._readers[shard]
        opened = bytearray(reader.header.plaintext_bytes(index))
        start = index * reader.header.record_bytes
        reader.open_range(start, start + len(opened), memoryview(opened))
        if len(self._cache) >= self._cached_records:
            _scrub(self._cache.popitem(last=False)[1])
        self._cache[place] = opened
        return opened


def _other_process() -> UsageError:
    return UsageError(
        "a sealed dataset cannot be sent to another process",
        why="its keys cannot be pickled and do not survive a fork",
        code="forked-dataset",
    )


def _scrub(record: bytearray) -> None:
    record[:] = bytes(len(record))


@contextmanager
def owner_keys(
    vault: str | Path,
    identity: str | Path,
    *,
    passphrase: str | None = None,
    passphrase_file: str | Path | None = None,
) -> Iterator[Vault]:
    """An owner's vault, open: give it to ``SealedDataset`` as ``keys``.

    Args:
        vault: Where ``sealift data seal`` keeps the data keys.
        identity: The owner's identity file.
        passphrase: Of the identity; or
        passphrase_file: a file whose first line it is.

    Raises:
        UsageError: unless exactly one of both is given.
        UnavailableError: if a file cannot be read.
        RefusedError: if the passphrase, or the identity, is another one.
    """
    if (passphrase is None) == (passphrase_file is None):
        raise UsageError("passphrase= or passphrase_file= is missing")
    if passphrase_file is not None:
        passphrase = read_secret_line(Path(passphrase_file))
    owner = load_identity(Path(identity), passphrase or "")
    with opened_vault(Path(vault), owner) as opened:
        yield opened
