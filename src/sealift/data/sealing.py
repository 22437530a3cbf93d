"""Seal a table at home: rows are validated, sealed and committed to in one pass.

Guarantees: either NAME.sealed and NAME.resource.json (and NAME.schema.toml, if asked
for) are there, whole and synced, of every shard, or none is, and what a killed process
left is settled by the next (``staging``); every row that was sealed satisfies the
schema; the sealed rows and the commitment are of the same bytes. Memory does not grow
with the table.
Not here: where the data key is kept (``release.vault.vault``; see ``keep``).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, get_args

from sealift import codec
from sealift.channel.record.commitment import key_commitment
from sealift.channel.record.layout import (
    DEFAULT_RECORD_BYTES,
    MAX_RECORD_BYTES,
    MIN_RECORD_BYTES,
    RECORD_ALIGNMENT_BYTES,
)
from sealift.channel.record.outputfile import open_output
from sealift.channel.record.sealedfile import write_sealed_file
from sealift.codec import MAX_INTEGER
from sealift.crypto.keys import SecretKey
from sealift.data.schema.card import ResourceCard
from sealift.data.schema.document import schema_to_plain, schema_to_toml
from sealift.data.schema.schema import Schema
from sealift.data.sources.source import NO_OPTIONS, SourceOptions
from sealift.data.sources.table import Table, open_table
from sealift.data.staging import Kept, Staging, sealed_paths, staged
from sealift.errors import UsageError
from sealift.events import Sink, discard, emit
from sealift.ids import check_name
from sealift.release.agreement import Part, Resource

MAX_SHARDS: Final = 256
DEFAULT_CELL_ROWS: Final = 64
LARGE_ROW_BYTES: Final = 64 << 10
_MOST_SMALL: Final = 1 << 20  # records of large rows: a card has a digest of each
PARTS: Final = tuple(part for part in get_args(Part) if part != "model")

Cards = tuple[ResourceCard, ...]
Keep = Callable[[Cards], None]


def _not_kept(cards: Cards) -> None:
    """The caller has the keys already."""


def _none_was_kept(card: ResourceCard) -> bool:
    """What an interrupted sealing left is of no use then."""
    return False


def seal_table(
    source: Path | str,
    schema: Schema,
    *,
    options: SourceOptions = NO_OPTIONS,
    schema_file: bool = False,
    name: str,
    part: Part,
    owner: str,
    key: SecretKey,
    out_dir: Path,
    record_bytes: int | None = None,
    cell_rows: int = DEFAULT_CELL_ROWS,
    keep: Keep = _not_kept,
    kept: Kept = _none_was_kept,
    sink: Sink = discard,
) -> ResourceCard:
    """Seal ``source`` to ``out_dir``/NAME.sealed and NAME.resource.json.

    Args:
        source: A file, a folder or an import path of a kind in ``sources``.
        schema: What a row is.
        options: What else is said about the source.
        schema_file: Whether NAME.schema.toml is written as well.
        name: The resource's name in the agreement.
        part: ``"train"`` or ``"heldout"``.
        owner: The owner's party name.
        key: A fresh data key; never one that another table was sealed with.
        out_dir: A folder that exists.
        record_bytes: About how large a record is; see ``record_bytes_for``.
        cell_rows: Rows of a cell of the grid along which visits may cut it, for ever.
        keep: Called when all files are written, and before any stands in ``out_dir``:
            the place to store the keys, all of them or none. If it raises and none is
            kept, the files are gone.
        kept: Whether the key of a card is kept: what an interrupted sealing left is
            put in place then, and else removed.
        sink: Gets ``data.progress`` events with ``done_bytes`` and ``total_bytes``.

    Raises:
        MalformedError: at the first row that does not fit the schema.
        UsageError: if a file of that name is there, or the source is no table.
        UnavailableError: if the disk is full, or a file cannot be read or written.
    """
    (card,) = seal_shards(
        source,
        schema,
        options=options,
        schema_file=schema_file,
        name=name,
        keys={name: key},
        part=part,
        owner=owner,
        out_dir=out_dir,
        record_bytes=record_bytes,
        cell_rows=cell_rows,
        keep=keep,
        kept=kept,
        sink=sink,
    )
    return card


def seal_shards(
    source: Path | str,
    schema: Schema,
    *,
    name: str,
    keys: Mapping[str, SecretKey],
    part: Part,
    owner: str,
    out_dir: Path,
    options: SourceOptions = NO_OPTIONS,
    schema_file: bool = False,
    record_bytes: int | None = None,
    cell_rows: int = DEFAULT_CELL_ROWS,
    keep: Keep = _not_kept,
    kept: Kept = _none_was_kept,
    sink: Sink = discard,
) -> Cards:
    """Seal the rows of ``source``, in their order and in one pass, as several tables.

    Args:
        name: Of the whole: NAME.schema.toml is written, if at all.
        keys: A fresh data key for each shard, by its name; in this order. Shards have
            as many rows as others, or one more.
        (The others are those of ``seal_table``; ``keep`` is called once.)

    Raises:
        UsageError: if there are fewer rows than shards; and as ``seal_table``.
        MalformedError, UnavailableError: as ``seal_table``; nothing is left then.
    """
    for each in keys:
        _check_words(each, part, owner)
    check_cell_rows(cell_rows)
    table = open_table(source, schema, options, checked=False)
    shares = _shares(table.rows, len(keys))
    size = record_bytes_for(schema.row_bytes, about=record_bytes, rows=max(shares))
    job = _Sealing(part, owner, size, cell_rows)
    final = list(_all_paths(out_dir, name, keys, schema_file=schema_file))
    with staged(out_dir, name, kept) as folder:
        folder.demand_free(iter(final))
        if schema_file:
            path = sealed_paths(out_dir, name).schema
            _write(path, folder, schema_to_toml(schema).encode())
        cards = job.seal(_counted(table, sink), schema, keys, shares, folder)
        folder.demand_free(iter(final))
        keep(cards)
        folder.place()
    return cards


@dataclass(frozen=True, slots=True)
class _Sealing:
    """What is the same for every shard."""

    part: Part
    owner: str
    record_bytes: int
    cell_rows: int

    def seal(
        self,
        blocks: Iterator[bytes],
        schema: Schema,
        keys: Mapping[str, SecretKey],
        shares: Sequence[int],
        folder: Staging,
    ) -> Cards:
        """Write each shard and its card; the cards."""
        rows = _RowBytes(blocks)
        ends = [False] * (len(shares) - 1) + [True]
        return tuple(
            self._seal_one(rows, schema, named, share, folder, last=last)
            for named, share, last in zip(keys.items(), shares, ends, strict=True)
        )

    def _seal_one(
        self,
        rows: _RowBytes,
        schema: Schema,
        named: tuple[str, SecretKey],
        share: int,
        folder: Staging,
        *,
        last: bool,
    ) -> ResourceCard:
        name, key = named
        paths, size = sealed_paths(folder.out_dir, name), share * schema.row_bytes
        sealed = write_sealed_file(
            paths.sealed,
            rows.take(size, last=last),
            key=key, total_bytes=size, record_bytes=self.record_bytes,
            description=schema.columns, folder=folder.descriptor,
        )  # fmt: skip
        resource = Resource(
            name=name,
            owner=self.owner,
            part=self.part,
            rows=share,
            row_bytes=schema.row_bytes,
            cell_rows=self.cell_rows,
            total_bytes=sealed.total_bytes,
            record_bytes=sealed.record_bytes,
            schema=schema_to_plain(schema.agreed),
            content=sealed.content.digest,
            key=key_commitment(key, name),
        )
        card = ResourceCard(resource=resource, leaves=sealed.leaves)
        _write(paths.card, folder, codec.encode(card))
        return card


def check_cell_rows(cell_rows: int) -> None:
    """Refuse what is no number of rows of a cell.

    Raises:
        UsageError: if it is not.
    """
    if not 1 <= cell_rows <= MAX_INTEGER:
        raise UsageError(
            f"a cell must have at least 1 row, not {cell_rows}",
            fix=f"Leave it out to use {DEFAULT_CELL_ROWS}",
        )


def shard_names(name: str, count: int) -> list[str]:
    """Names of a table's shards, in their order also when they are sorted.

    Raises:
        UsageError: for no shards, or too many.
    """
    if not 1 <= count <= MAX_SHARDS:
        raise UsageError(
            f"a table can be sealed as 1 to {MAX_SHARDS} shards, not {count}"
        )
    digits = len(str(count - 1))
    return [f"{name}-{number:0{digits}}" for number in range(count)]


def record_bytes_for(row_bytes: int, *, about: int | None = None, rows: int = 0) -> int:
    """The record size nearest below ``about`` that holds whole rows.

    A record of whole rows can be visited alone. Where no record size up to 4 MiB does,
    rows cross records and the size is ``about``, rounded down to a multiple of 32.

    Args:
        row_bytes: Bytes of a row.
        about: Bytes, from 64 to 4 MiB. None for 1 MiB, and where rows are large for the
            fewest whole rows: whoever reads one of them has to open all its record.
        rows: How many there are.

    Raises:
        UsageError: if ``about`` is outside these limits.
    """
    if about is not None and not MIN_RECORD_BYTES <= about <= MAX_RECORD_BYTES:
        raise UsageError(
            f"a record must have {MIN_RECORD_BYTES:,} to {MAX_RECORD_BYTES:,} bytes, not {about:,}",
            fix="Leave it out to have it chosen",
        )
    unit = math.lcm(row_bytes, RECORD_ALIGNMENT_BYTES)
    if unit > MAX_RECORD_BYTES:
        unit = RECORD_ALIGNMENT_BYTES
    elif about is None and row_bytes >= LARGE_ROW_BYTES and rows <= _MOST_SMALL:
        return unit
    return max((about or DEFAULT_RECORD_BYTES) // unit, 1) * unit


def demand_unsealed(
    out_dir: Path, name: str, names: Iterable[str], *, schema_file: bool
) -> None:
    """Refuse before the source is read what sealing would refuse afterwards.

    Raises:
        UsageError: ``output-exists``.
    """
    for path in _all_paths(out_dir, name, names, schema_file=schema_file):
        if os.path.lexists(path):
            raise UsageError(f"{path} already exists", code="output-exists")


def _all_paths(
    out_dir: Path, name: str, keys: Iterable[str], *, schema_file: bool
) -> Iterator[Path]:
    """Every file that sealing makes."""
    for each in keys:
        paths = sealed_paths(out_dir, each)
        yield from (paths.sealed, paths.card)
    if schema_file:
        yield sealed_paths(out_dir, name).schema


def _write(path: Path, folder: Staging, content: bytes) -> None:
    with open_output(path, folder=folder.descriptor) as output:
        output.write(content)


def _shares(rows: int, count: int) -> list[int]:
    if rows < count:
        raise UsageError(
            f"{rows:,} rows are too few for {count} shards", fix="Use fewer shards"
        )
    share, more = divmod(rows, count)
    return [share + (number < more) for number in range(count)]


class _RowBytes:
    """The bytes of all rows, taken a share at a time."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._left = memoryview(b"")

    def take(self, size_bytes: int, *, last: bool) -> Iterator[memoryview]:
        """The next ``size_bytes``; the last share is all that comes.

        So whatever a source finds out at its end is known before that share is whole.
        """
        while size_bytes > 0 or last:
            block = self._left or memoryview(next(self._blocks, b""))
            if not block:
                return
            end = len(block) if last else size_bytes
            part, self._left = block[:end], block[end:]
            size_bytes -= len(part)
            yield part


def _counted(table: Table, sink: Sink) -> Iterator[bytes]:
    """The table's blocks; says how far it is."""
    done_bytes = 0
    for block in table.blocks():
        yield block
        done_bytes += len(block)
        emit(
            sink, "data.progress", done_bytes=done_bytes, total_bytes=table.total_bytes
        )


def _check_words(name: str, part: str, owner: str) -> None:
    check_name(name, what="resource name")
    check_name(owner, what="owner")
    if part not in PARTS:
        raise UsageError(f"the part must be one of {', '.join(PARTS)}, not {part!r}")
