"""Seal a table at home: rows are validated, sealed and committed to in one pass.

Guarantees: either NAME.sealed and NAME.resource.json (and NAME.schema.toml, if asked
for) are there, whole and synced, of every shard, or none is; every row that was sealed satisfies the schema; the sealed rows and the
commitment are of the same bytes. Memory does not grow with the table.
Not here: where the data key is kept (``release.vault``; see ``keep``).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, get_args

from sealift import codec
from sealift.channel.commitment import key_commitment
from sealift.channel.header import (
    DEFAULT_RECORD_BYTES,
    MAX_RECORD_BYTES,
    MIN_RECORD_BYTES,
    RECORD_ALIGNMENT_BYTES,
)
from sealift.channel.outputfile import open_output
from sealift.channel.sealedfile import SealedFileCard, write_sealed_file
from sealift.crypto.keys import SecretKey
from sealift.data.card import CARD_SUFFIX, SEALED_SUFFIX, ResourceCard
from sealift.data.schema import Schema
from sealift.data.schemafile import schema_to_plain, schema_to_toml
from sealift.data.sources.source import NO_OPTIONS, SourceOptions
from sealift.data.table import Table, open_table
from sealift.errors import UsageError
from sealift.events import Sink, discard, emit
from sealift.ids import check_name
from sealift.release.agreement import Part, Resource

MAX_SHARDS: Final = 256
PARTS: Final = tuple(part for part in get_args(Part) if part != "model")
SCHEMA_SUFFIX: Final = ".schema.toml"

Keep = Callable[[ResourceCard], None]


@dataclass(frozen=True, slots=True)
class SealedPaths:
    """The files that sealing a table makes; the schema only where it was inferred."""

    sealed: Path
    card: Path
    schema: Path


def sealed_paths(out_dir: Path, name: str) -> SealedPaths:
    """Where a resource's files stand in ``out_dir``."""
    return SealedPaths(
        out_dir / f"{name}{SEALED_SUFFIX}",
        out_dir / f"{name}{CARD_SUFFIX}",
        out_dir / f"{name}{SCHEMA_SUFFIX}",
    )


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
    record_bytes: int = DEFAULT_RECORD_BYTES,
    keep: Keep = lambda card: None,
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
        keep: Called when the sealed file is written and before the card is: the place
            to store the key. If it raises, both files are gone.
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
        schema_file=sealed_paths(out_dir, name).schema if schema_file else None,
        keys={name: key},
        part=part,
        owner=owner,
        out_dir=out_dir,
        record_bytes=record_bytes,
        keep=keep,
        sink=sink,
    )
    return card


def seal_shards(
    source: Path | str,
    schema: Schema,
    *,
    keys: Mapping[str, SecretKey],
    part: Part,
    owner: str,
    out_dir: Path,
    options: SourceOptions = NO_OPTIONS,
    schema_file: Path | None = None,
    record_bytes: int = DEFAULT_RECORD_BYTES,
    keep: Keep = lambda card: None,
    sink: Sink = discard,
) -> tuple[ResourceCard, ...]:
    """Seal the rows of ``source``, in their order and in one pass, as several tables.

    Args:
        keys: A fresh data key for each shard, by its name; in this order. Shards have
            as many rows as others, or one more.
        schema_file: Where the schema is written, if anywhere.
        (The others are those of ``seal_table``; ``keep`` is called for each card when
        all rows are sealed, before any card is there.)

    Raises:
        UsageError: if there are fewer rows than shards; and as ``seal_table``.
        MalformedError, UnavailableError: as ``seal_table``; nothing is left then.
    """
    for name in keys:
        _check_words(name, part, owner)
    table = open_table(source, schema, options)
    shares = _shares(table.rows, len(keys))
    rows = _RowBytes(_counted(table, sink))
    about = record_bytes_for(schema.row_bytes, about=record_bytes)
    cards = []
    with contextlib.ExitStack() as undo, contextlib.ExitStack() as outputs:
        if schema_file is not None:
            _write_schema(schema_file, schema)
            undo.push(_remover(schema_file))
        files = [sealed_paths(out_dir, name) for name in keys]
        card_files = [outputs.enter_context(open_output(each.card)) for each in files]
        for paths, (name, key), share in zip(files, keys.items(), shares, strict=True):
            size = share * schema.row_bytes
            sealed = write_sealed_file(
                paths.sealed,
                rows.take(size, last=paths is files[-1]),
                key=key, total_bytes=size, record_bytes=about,
            )  # fmt: skip
            # From here they are ours to remove, also if a card's rename fails.
            undo.push(_remover(paths.sealed))
            undo.push(_remover(paths.card))
            words = {"name": name, "owner": owner}
            cards.append(_make_card(schema, share, sealed, key, part, **words))
        for card, card_file in zip(cards, card_files, strict=True):
            card_file.write(codec.encode(card))
            keep(card)
    return tuple(cards)


def shard_names(name: str, count: int) -> list[str]:
    """Names of a table's shards, in their order also when they are sorted.

    Raises:
        UsageError: for no shards, or too many.
    """
    if not 1 <= count <= MAX_SHARDS:
        raise UsageError(f"a table is sealed as 1 to {MAX_SHARDS} shards, not {count}")
    digits = len(str(count - 1))
    return [f"{name}-{number:0{digits}}" for number in range(count)]


def record_bytes_for(row_bytes: int, *, about: int = DEFAULT_RECORD_BYTES) -> int:
    """The record size nearest below ``about`` that holds whole rows.

    A record of whole rows can be visited alone. Where no record size up to 4 MiB does,
    rows cross records and the size is ``about``, rounded down to a multiple of 32.

    Args:
        row_bytes: Bytes of a row.
        about: Bytes, from 64 to 4 MiB.

    Raises:
        UsageError: if ``about`` is outside these limits.
    """
    if not MIN_RECORD_BYTES <= about <= MAX_RECORD_BYTES:
        raise UsageError(
            f"a record has {MIN_RECORD_BYTES} to {MAX_RECORD_BYTES} bytes, not {about}"
        )
    unit = math.lcm(row_bytes, RECORD_ALIGNMENT_BYTES)
    if unit > MAX_RECORD_BYTES:
        unit = RECORD_ALIGNMENT_BYTES
    return max(about // unit, 1) * unit


def _write_schema(path: Path, schema: Schema) -> None:
    with open_output(path) as output:
        output.write(schema_to_toml(schema).encode())


def _shares(rows: int, count: int) -> list[int]:
    if rows < count:
        raise UsageError(
            f"{rows} rows are too few for {count} shards", fix="Use fewer shards"
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
            sink,
            "data.progress",
            done_bytes=done_bytes,
            total_bytes=table.total_bytes,
        )


def _remover(path: Path) -> Callable[..., None]:
    """An exit callback that removes ``path`` if the block ended in an error."""

    def leave(kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            path.unlink(missing_ok=True)

    return leave


def _check_words(name: str, part: str, owner: str) -> None:
    check_name(name, what="resource name")
    check_name(owner, what="owner")
    if part not in PARTS:
        raise UsageError(f"a part is one of {', '.join(PARTS)}, not {part!r}")


def _make_card(
    schema: Schema,
    rows: int,
    sealed: SealedFileCard,
    key: SecretKey,
    part: Part,
    *,
    name: str,
    owner: str,
) -> ResourceCard:
    resource = Resource(
        name=name,
        owner=owner,
        part=part,
        rows=rows,
        row_bytes=schema.row_bytes,
        total_bytes=sealed.total_bytes,
        record_bytes=sealed.record_bytes,
        schema=schema_to_plain(schema),
        content=sealed.content.digest,
        key=key_commitment(key, name),
    )
    return ResourceCard(resource=resource, leaves=sealed.leaves)
