"""Tables as their owners have them: .csv, .npy, .npz or .safetensors, to row blocks.

Guarantees: memory does not grow with the table; nothing is unpickled; every row that
comes out satisfies the schema (``rows``); a table that does not is refused with file,
row and column. A file that changes while it is read is refused as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from sealift.data import arrays, csvtable
from sealift.data.rows import Columns, Locate, bad_table, pack
from sealift.data.schema import Schema
from sealift.errors import UnavailableError, UsageError
from sealift.release.files import unreadable

BLOCK_BYTES: Final = 1 << 20


class TableReader(Protocol):
    """One file format."""

    @property
    def rows(self) -> int:
        """Rows in the table."""

    def columns(self, rows_per_block: int) -> Iterator[Columns]:
        """The rows in order, as columns; every block but the last is full."""

    def locate(self, first_row: int) -> Locate:
        """Words for a place in the block that starts at ``first_row``."""


OPENER_FOR_SUFFIX: Final[dict[str, Callable[[Path, Schema], TableReader]]] = {
    ".csv": csvtable.open_csv,
    ".npy": arrays.open_npy,
    ".npz": arrays.open_npz,
    ".safetensors": arrays.open_safetensors,
}


@dataclass(frozen=True)
class Table:
    """An opened table; ``blocks`` reads it once from the start at every call."""

    path: Path
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
                source = self.path.name
                block = pack(columns, self.schema, source=source, locate=locate)
                done += len(block) // self.schema.row_bytes
                yield block
        except OSError as error:
            raise unreadable(self.path, error) from error
        if done != self.rows:
            raise bad_table(
                f"{self.path.name} changed while it was read",
                why=f"{self.rows} rows at first, {done} now",
                fix="Seal a copy that nothing writes to",
            )


def open_table(path: Path, schema: Schema) -> Table:
    """Open a table; reads its header, and for CSV counts its rows.

    Raises:
        UsageError: if its suffix is not known.
        UnavailableError: if the file cannot be read.
        MalformedError: if it is empty, or its columns are not the schema's.
    """
    opener = OPENER_FOR_SUFFIX.get(path.suffix.lower())
    if opener is None:
        known = ", ".join(OPENER_FOR_SUFFIX)
        raise UsageError(
            f"{path} is not a table that can be sealed",
            why=f"the suffix is {path.suffix!r}",
            fix=f"Use one of {known}",
        )
    if not path.is_file():
        raise UnavailableError(
            f"cannot read {path}", why="there is no such file", code="cannot-read"
        )
    try:
        reader = opener(path, schema)
    except OSError as error:
        raise unreadable(path, error) from error
    if reader.rows < 1:
        raise bad_table(f"{path.name} has no rows")
    return Table(path, schema, reader)
