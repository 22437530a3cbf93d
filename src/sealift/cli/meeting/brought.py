"""What an owner brings to a meeting: its tables, as the command line names them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from sealift.cli.data import add_source_options, source_options
from sealift.crypto.identity import Identity
from sealift.crypto.keys import Label
from sealift.data.schema.schema import Schema
from sealift.data.schema.split import Split
from sealift.data.sources.source import NO_OPTIONS, SourceOptions
from sealift.data.sources.table import open_table, tell_numbers
from sealift.errors import MalformedError, SealiftError, UsageError
from sealift.ids import Digest

_PERCENT = re.compile(r"([0-9]+) ?%")


def add_table_arguments(parser: Any) -> None:
    """Add DATA, ``--heldout``, and how both are written."""
    parser.add_path(
        "data",
        metavar="DATA",
        help="your rows: a .csv, .tsv, .npy, .npz, .safetensors or .parquet file; a folder with "
        "images by class, with Parquet files, or from Dataset.save_to_disk",
    )
    parser.add_path(
        "--heldout",
        metavar="FILE|N%",
        help="rows to measure on, not to train on: a file of their own, or for example 20%% of "
        "DATA, chosen by a hash with your key, so that the same row is always on the same side",
    )
    add_source_options(parser)


@dataclass(frozen=True, slots=True)
class Brought:
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
            every = sorted(self.source.rglob("*"))
            stats = [(str(each), each.lstat()) for each in every]
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


def brought_by(args: argparse.Namespace, identity: Identity) -> tuple[Brought, ...]:
    """The table to train on, and the held-out one if there is one.

    Raises:
        UsageError: an option that does not fit, or no part of a table.
        UnavailableError, MalformedError: as ``load_own_table``.
    """
    return tuple(_brought(args, identity))


def _brought(args: argparse.Namespace, identity: Identity) -> Iterator[Brought]:
    options = source_options(args, args.data)
    if args.heldout is None or (percent := percent_of(args.heldout)) is None:
        yield Brought("train", args.data, options)
        if args.heldout is not None:
            yield Brought("heldout", args.heldout, source_options(args, args.heldout))
        return
    split = Split(identity.derive(Label.HELDOUT_SPLIT), percent, heldout=False)
    yield Brought("train", args.data, replace(options, split=split))
    heldout = replace(split, heldout=True)
    yield Brought("heldout", args.data, replace(options, split=heldout))


def percent_of(heldout: Path) -> int | None:
    """The share of the rows that is held out; None for a file.

    Raises:
        UsageError: a share of all rows, or of none.
    """
    found = _PERCENT.fullmatch(str(heldout))
    if found is None:
        return None
    if not 1 <= int(found[1]) <= 99:
        raise UsageError(f"--heldout {heldout} is not 1% to 99%")
    return int(found[1])
