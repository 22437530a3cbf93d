"""A table that its owner brings to a meeting."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sealift.data.schema.schema import Schema
from sealift.data.sources.source import NO_OPTIONS, SourceOptions
from sealift.data.sources.table import files_of, open_table, tell_numbers
from sealift.errors import MalformedError, SealiftError
from sealift.ids import Digest


@dataclass(frozen=True, slots=True)
class BroughtTable:
    """One table, or one side of one that is split.

    Attributes:
        part: What its rows are for.
        source: The file or folder.
        options: How its owner says that it is written.
    """

    part: Literal["train", "heldout"]
    source: Path
    options: SourceOptions

    @property
    def name(self) -> str:
        """What its owner calls it."""
        split = self.options.split
        if split is None:
            return self.source.name
        if split.heldout:
            return f"{self.source.name} ({split.percent} % held out)"
        return f"{self.source.name}, {100 - split.percent} % to train on"

    @property
    def stamp(self) -> str:
        """What changes when its content does, or how it is read."""
        found = self.source.stat()
        stamp = f"{found.st_size} {found.st_mtime_ns}"
        if self.source.is_dir():
            stats = [(str(each), each.stat()) for each in files_of(self.source)]
            parts = [(name, now.st_size, now.st_mtime_ns) for name, now in stats]
            stamp = Digest.of(repr(parts).encode()).to_text()
        if self.options != NO_OPTIONS:
            stamp += f" {Digest.of(repr(self.options).encode()).to_text()}"
        return stamp

    def count_rows(self, schema: Schema, fewest: int) -> int:
        """Look at every row, and count them.

        Args:
            schema: What a row is.
            fewest: Rows that it must have.

        Raises:
            SealiftError: for which the table cannot be used.
        """
        table = open_table(self.source, schema, self.options)
        self.require_rows(table.rows, fewest)
        return table.rows

    def tell_numbers(self, schema: Schema) -> list[str]:
        """See ``table.tell_numbers``; none of a table that cannot be looked at."""
        with suppress(SealiftError):  # the comparison tells it, if its owner allows one
            return tell_numbers(self.source, schema, self.options)
        return []

    def require_rows(self, rows: int, fewest: int) -> None:
        """Refuse a table that is too small for what the host declares.

        Raises:
            MalformedError: ``too-few-rows``.
        """
        if rows < fewest:
            raise MalformedError(
                f"{self.name} has {rows:,} rows",
                why=f"the host's terms need at least {fewest:,}",
                code="too-few-rows",
            )
