"""Tables as their owners have them, of any kind in ``sources``, to row blocks.

Guarantees: memory does not grow with the table; nothing is unpickled; every row that
comes out satisfies the schema (``rows``); a table that does not is refused with file,
row and column. A file that changes while it is read is refused as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from sealift.data.schema.rows import bad_table, pack
from sealift.data.schema.schema import Schema
from sealift.data.sources import (
    arrayfiles,
    arrow,
    csvtable,
    huggingface,
    images,
    mapstyle,
)
from sealift.data.sources.source import (
    NO_OPTIONS,
    Source,
    SourceOptions,
    TableReader,
    unclear,
)
from sealift.errors import UnavailableError, UsageError, unreadable

# The first that claims a place gets it: folders with files of their own before images.
SOURCES: Final[tuple[Source, ...]] = (
    csvtable.SOURCE,
    arrayfiles.NPY,
    arrayfiles.NPZ,
    arrayfiles.SAFETENSORS,
    arrow.SOURCE,
    huggingface.SOURCE,
    images.SOURCE,
    mapstyle.SOURCE,
)
BLOCK_BYTES: Final = 1 << 20

T = TypeVar("T")


@dataclass(frozen=True)
class Table:
    """An opened table; ``blocks`` reads it once from the start at every call."""

    name: str
    schema: Schema
    reader: TableReader

    @property
    def rows(self) -> int:
        """Rows in the table, at least 1."""
        return self.reader.rows

    @property
    def total_bytes(self) -> int:
        """Bytes of all rows."""
        return self.rows * self.schema.row_bytes

    def blocks(self, *, block_bytes: int = BLOCK_BYTES) -> Iterator[bytes]:
        """The table's rows as bytes, in blocks of whole rows.

        Args:
            block_bytes: About how large a block is; at least one row.

        Raises:
            MalformedError: at the first row that does not fit the schema, or when
                the file has other rows than when it was opened.
        """
        per_block = max(1, block_bytes // self.schema.row_bytes)
        done = 0
        try:
            for columns in self.reader.columns(per_block):
                locate = self.reader.locate(done)
                block = pack(columns, self.schema, source=self.name, locate=locate)
                done += len(block) // self.schema.row_bytes
                yield block
        except OSError as error:
            raise unreadable(Path(error.filename or self.name), error) from error
        if done != self.rows:
            raise bad_table(
                f"{self.name} changed while it was read",
                why=f"{self.rows} rows at first, {done} now",
                fix="Seal a copy that nothing writes to",
            )


def open_table(
    source: Path | str, schema: Schema, options: SourceOptions = NO_OPTIONS
) -> Table:
    """Open a table; reads its header, and for some kinds counts its rows.

    Args:
        source: A file, a folder, or ``MODULE:ATTRIBUTE``; see ``sources``.
        schema: What a row is.
        options: What else the user says about it.

    Raises:
        UsageError: if it is of no kind that is known.
        UnavailableError: if it cannot be read, or a package is missing.
        MalformedError: if it is empty, or its columns are not the schema's.
    """
    place = str(source)
    reader = _readable(place, lambda: _source_of(place).open(place, schema, options))
    name = Path(place).name
    if reader.rows < 1:
        raise bad_table(f"{name} has no rows")
    return Table(name, schema, reader)


def _source_of(place: str) -> Source:
    """The kind of source that a place is.

    Raises:
        UsageError: code ``unknown-source``, if it is none.
        UnavailableError: if there is nothing of that name.
    """
    for source in SOURCES:
        if source.claims(place):
            return source
    if not Path(place).exists():
        raise UnavailableError(
            f"cannot read {place}",
            why="there is no such file, and it is no MODULE:ATTRIBUTE",
            code="cannot-read",
        )
    raise UsageError(
        f"{place} is not a table that can be sealed",
        fix=f"Use one of: {'; '.join(source.name for source in SOURCES)}",
        code="unknown-source",
    )


def infer_schema(source: Path | str, options: SourceOptions = NO_OPTIONS) -> Schema:
    """The schema that a source says itself: names, dtypes, shapes, classes; no bounds.

    Raises:
        MalformedError: code ``no-schema``, if it does not say one.
        UsageError, UnavailableError: as ``open_table``.
    """
    place = str(source)
    kind = _readable(place, lambda: _source_of(place))
    if kind.infer is None:
        raise unclear(f"a {kind.name} does not say what its columns are")
    infer = kind.infer
    return _readable(place, lambda: infer(place, options))


def _readable(place: str, step: Callable[[], T]) -> T:
    path = Path(place)
    try:
        if not path.exists() and ":" not in path.name:
            raise UnavailableError(
                f"cannot read {path}", why="there is no such file", code="cannot-read"
            )
        _refuse_pipe(path)
        return step()
    except OSError as error:
        raise unreadable(Path(error.filename or path), error) from error


def _refuse_pipe(path: Path) -> None:
    """Nobody may ever write to a pipe, and no source is read only once."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise UsageError(
            f"{path} is not a file",
            why="it is a pipe, a socket or a device",
            fix="Write its content to a file first: it is read more than once",
            code="unknown-source",
        )
