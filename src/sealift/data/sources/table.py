"""Tables as their owners have them, of any kind in ``sources``, to row blocks.

Guarantees: memory does not grow with the table; nothing is unpickled; every row that
comes out satisfies the schema (``rows``); a table that does not is refused with file,
row and column. A file or folder that changes while it is read is refused as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from sealift.data.schema.owntable import AS_IT_LOOKS, OwnTable
from sealift.data.schema.rows import bad_table, pack
from sealift.data.schema.schema import Field, Schema, say_categories
from sealift.data.schema.split import Split
from sealift.data.sources import arrayfiles, arrow, huggingface, images, mapstyle
from sealift.data.sources.csvfiles.structure import Structure, look_at
from sealift.data.sources.problems import Problems
from sealift.data.sources.source import (
    NO_OPTIONS,
    Draft,
    SourceOptions,
    TableReader,
    TableSource,
    refuse_options,
    refuse_vectors,
    unclear,
    with_suffix,
)
from sealift.errors import MalformedError, UnavailableError, UsageError, unreadable
from sealift.events import Sink, discard
from sealift.ids import Digest

is_text = with_suffix(".csv", ".tsv")


def _open_csv(place: str, schema: Schema, options: SourceOptions) -> TableReader:
    from sealift.data.sources.csvfiles.reader import open_csv  # 0.2 s, of pyarrow

    return open_csv(place, schema, options)


def _check_csv(reader: Any, sink: Sink) -> None:
    reader.check(sink)


# The first that claims a place gets it: folders with files of their own before images.
SOURCES: Final[tuple[TableSource, ...]] = (
    TableSource(
        ".csv or .tsv file",
        is_text,
        _open_csv,
        check=_check_csv,
        has_names=lambda place, column: True,
    ),
    arrayfiles.NPY,
    arrayfiles.NPZ,
    arrayfiles.SAFETENSORS,
    arrow.SOURCE,
    huggingface.SOURCE,
    images.SOURCE,
    mapstyle.SOURCE,
)
_AS_CSV: Final = "Open it in the program that wrote it, and save the table as CSV"
_INSTEAD: Final = {
    **dict.fromkeys((".gz", ".bz2", ".xz", ".zst", ".zip", ".tar"), "Unpack it first"),
    **dict.fromkeys(
        (".xlsx", ".xls", ".ods", ".sas7bdat", ".sav", ".dta", ".rds", ".rdata"), _AS_CSV
    ),
    **dict.fromkeys((".txt", ".dat"), "If it is a table of text, give it a name that ends in .csv"),
    **dict.fromkeys(
        (".json", ".jsonl", ".feather", ".arrow", ".pkl", ".pt", ".h5", ".arff"),
        "Write it as CSV or Parquet with the program that reads it",
    ),
}  # fmt: skip
BLOCK_BYTES: Final = 1 << 20
_IN_FOLDERS: Final = images.SUFFIXES.union(arrow.SUFFIXES, {".arrow"})

T = TypeVar("T")


@dataclass(frozen=True)
class Table:
    """An opened table; ``blocks`` reads it once from the start at every call.

    Attributes:
        rows: Rows that it yields: at least 1, but for a side of a split.
        split: Which rows of the source these are; None: all.
    """

    name: str
    schema: Schema
    reader: TableReader
    place: Path
    stamp: Digest  # of its files, when it was opened
    rows: int
    split: Split | None = None

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
        row_bytes, split = self.schema.row_bytes, self.split
        per_block = max(1, block_bytes // row_bytes)
        done = kept = 0
        try:
            for columns in self.reader.columns(per_block):
                locate = self.reader.locate(done)
                block = pack(columns, self.schema, source=self.name, locate=locate)
                done += len(block) // row_bytes
                block = split.of_block(block, row_bytes) if split else block
                kept += len(block) // row_bytes
                yield block
        except OSError as error:
            raise unreadable(Path(error.filename or self.name), error) from error
        except MalformedError:
            self._demand_unchanged()
            raise
        if done != self.reader.rows:
            raise self._changed(
                f"it had {self.reader.rows:,} rows first, and {done:,} now"
            )
        self._demand_unchanged()
        if kept != self.rows:
            raise self._changed("it has other rows now")

    def _demand_unchanged(self) -> None:
        if _readable(str(self.place), lambda: _stamp(self.place)) != self.stamp:
            raise self._changed("")

    def _changed(self, why: str) -> MalformedError:
        return bad_table(
            f"{self.name} changed while it was read",
            why=why,
            fix="Seal a copy that no program writes to",
        )


def files_of(place: Path) -> list[Path]:
    """The files that a table lies in; others in its folder, such as sealed ones, do not count."""
    inside = (f for f in place.rglob("*") if f.suffix.lower() in _IN_FOLDERS)
    return sorted(f for f in (place, *inside) if f.is_file())


def _stamp(place: Path) -> Digest:
    """Which files a table lies in, and when each was written last."""
    stats = ((str(f), f.stat()) for f in files_of(place))
    parts = [(n, f.st_ino, f.st_size, f.st_mtime_ns, f.st_ctime_ns) for n, f in stats]
    return Digest.of(repr(parts).encode())


def open_table(
    source: Path | str,
    schema: Schema,
    options: SourceOptions = NO_OPTIONS,
    *,
    checked: bool = True,
    sink: Sink = discard,
) -> Table:
    """Open a table; reads its header, for some kinds counts its rows or checks them.

    Args:
        source: A file, a folder, or ``MODULE:ATTRIBUTE``; see ``sources``.
        schema: What a row is.
        options: What else the user says about it.
        checked: False where every row is read next: what is wrong is said then.
        sink: Gets ``data.progress`` events of what is checked.

    Raises:
        UsageError: if it is of no kind that is known.
        UnavailableError: if it cannot be read, or a package is missing.
        MalformedError: if it is empty, or its columns are not the schema's.
    """
    place = str(source)
    path = Path(place)
    stamp = _readable(place, lambda: _stamp(path))
    kind = _readable(place, lambda: _source_of(place))
    if options.own != AS_IT_LOOKS and not is_text(place):
        raise UsageError(
            f"{options.own.source} can only be used with .csv and .tsv files"
        )
    reader = _readable(place, lambda: kind.open(place, schema, options))
    if reader.rows < 1:
        raise bad_table(f"{path.name} has no rows")
    if checked and kind.check is not None:
        check = kind.check
        _readable(place, lambda: check(reader, sink))
    table = Table(path.absolute().name, schema, reader, path, stamp, reader.rows)
    if (split := options.split) is None:
        return table
    sides = (split.of_block(each, schema.row_bytes) for each in table.blocks())
    rows = sum(map(len, sides)) // schema.row_bytes
    return replace(table, rows=rows, split=split)


def _source_of(place: str) -> TableSource:
    """The kind of source that a place is.

    Raises:
        UsageError: code ``unknown-source``, if it is none.
        MalformedError: if it is a folder with nothing in it.
        UnavailableError: if there is nothing of that name.
    """
    for source in SOURCES:
        if source.claims(place):
            return source
    if not Path(place).exists():
        raise UnavailableError(
            f"cannot read {place}",
            why="there is no such file, and it is not a MODULE:ATTRIBUTE",
            code="cannot-read",
        )
    if Path(place).is_dir() and not any(Path(place).iterdir()):
        raise bad_table(f"{place} is an empty folder")
    kinds = f"Use one of: {'; '.join(source.name for source in SOURCES)}"
    raise UsageError(
        f"{place} is not a kind of table that can be sealed",
        fix=_INSTEAD.get(Path(place).suffix.lower(), kinds),
        code="unknown-source",
    )


def tell_numbers(
    source: Path | str, schema: Schema, options: SourceOptions
) -> list[str]:
    """A line for each column of plain numbers whose meaning only the schema's categories say.

    Raises:
        SealiftError: as ``open_table``, if the source cannot be looked at.
    """
    place = str(source)
    named = [each for each in schema.fields if each.cells.categories]
    if not named:
        return []
    kind = _readable(place, lambda: _source_of(place))

    def is_plain(field: Field) -> bool:
        return not kind.has_names(place, options.column(field.name))

    return _readable(place, lambda: [say_categories(f) for f in named if is_plain(f)])


def infer_schema(source: Path | str, options: SourceOptions = NO_OPTIONS) -> Schema:
    """The schema that a source says itself: names, dtypes, shapes, classes; no bounds.

    Raises:
        MalformedError: code ``no-schema``, if it does not say one.
        UsageError, UnavailableError: as ``open_table``.
    """
    place = str(source)
    kind = _readable(place, lambda: _source_of(place))
    if kind.infer is None:
        raise unclear(f"a {kind.name} has no schema of its columns")
    infer = kind.infer
    return _readable(place, lambda: infer(place, options))


def draft_schema(
    sources: Sequence[Path | str], options: SourceOptions, sink: Sink = discard
) -> Draft:
    """A schema for sources with the same columns: as they say it, or as their text looks.

    ``sink`` gets ``data.progress`` events of text tables: rows done, and all of them.

    Raises:
        MalformedError: as ``infer_schema``; or a text table cannot be told apart.
        UsageError: several sources that say it themselves.
        UnavailableError: as ``open_table``.
    """
    if not all(map(is_text, map(str, sources))):
        if len(sources) > 1:
            raise UsageError(
                "a schema can be drafted from several files only if all are .csv or .tsv files"
            )
        refuse_vectors(options)
        return Draft(infer_schema(sources[0], options))
    from sealift.data.sources.csvfiles.draft import draft_from_texts

    refuse_options(options, "a .csv file")
    structures = [
        _readable(str(each), partial(_look, each, options.own)) for each in sources
    ]
    return draft_from_texts(structures, options, sink)


def check_tables(
    sources: Sequence[Path | str],
    schema: Schema,
    options: SourceOptions,
    sink: Sink = discard,
) -> None:
    """Open each, and tell all that is wrong with any.

    ``sink`` gets ``data.progress`` events, for each text table anew.

    Raises:
        MalformedError: with the problems of all.
        UsageError, UnavailableError: as ``open_table``.
    """
    found = []
    for source in sources:
        try:
            open_table(source, schema, options, sink=sink)
        except MalformedError as error:
            found.append(error)
    if not found:
        return
    if len(found) == 1:
        raise found[0]
    lines: list[str] = []
    for each in found:
        lines += each.problems
        lines.append(f"{each.what}: {each.why}" if each.why else each.what)
    raise MalformedError(
        f"{len(found)} tables do not fit", code=found[0].code, problems=tuple(lines)
    )


def _look(source: Path | str, own: OwnTable) -> Structure:
    """What it looks like; rows of another length are told once there is a draft, or now."""
    path = Path(source)
    problems = Problems(path.name)
    structure = look_at(path, problems, own)
    if structure.rows <= len(structure.ragged):
        problems.demand_none()
        raise bad_table(f"{path.name} has no rows")
    return structure


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
            fix="Write its content to a file first, because it is read more than once",
            code="unknown-source",
        )
