"""Rows from .npz, .json and .csv files by a model's inputs, and answers into such files."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sealift.data.schema.card import schema_of
from sealift.data.schema.cells import NO_RULES
from sealift.data.schema.owntable import AS_IT_LOOKS, OwnTable
from sealift.data.schema.schema import Field, Schema
from sealift.data.sources.source import SourceOptions
from sealift.errors import MalformedError, UnavailableError, UsageError, nearest
from sealift.release.agreement import Resource
from sealift.release.files import read_whole, require_absent, write_whole

MAX_INPUT_BYTES: Final = 1 << 30
Columns = dict[str, NDArray[Any]]
# What numpy, json and csv raise on files that are not what their names say.
_UNREADABLE: Final = (
    ValueError, TypeError, KeyError, AttributeError, EOFError, OverflowError,
    RecursionError, NotImplementedError, zipfile.BadZipFile, zlib.error, csv.Error,
)  # fmt: skip


def read_columns(
    path: Path | None, schema: Schema, own: OwnTable = AS_IT_LOOKS
) -> Columns:
    """Arrays by name, of the model's own element types.

    Args:
        path: The file; text tables are read as ``data seal`` reads them.
        schema: The model's inputs.
        own: What the owner says of a text table.

    Raises:
        UsageError: no file, or one of another kind.
        UnavailableError: if it cannot be read.
        MalformedError: code ``bad-request``, if it does not fit the inputs.
    """
    if path is None:
        raise UsageError("the input rows are missing", fix="Name a file with rows")
    reader = _READERS.get(path.suffix)
    if path.suffix not in _READERS:
        raise _other_kind(path)
    raw = read_whole(path, MAX_INPUT_BYTES)
    try:
        if not raw:
            raise ValueError("the file is empty")
        if reader is None:
            return _read_text(path, schema, own)
        return reader(raw, schema)
    except _UNREADABLE as error:
        why = str(error)[:200].rstrip(".") or type(error).__name__
        raise MalformedError(
            f"{path.name} does not fit the model's inputs", why=why, code="bad-request"
        ) from None


def _named_alike(schema: Schema, header: Sequence[str], own: OwnTable) -> Schema:
    """The schema with columns whose names, as a draft writes them, are names of fields.

    A model's file has no names of columns: ``mean radius`` is its field ``mean_radius``.
    """
    from sealift.data.sources.source import field_name

    drafted = [field_name(column, set()) for column in header]
    columns = {
        name: column
        for name, column in zip(drafted, header, strict=True)
        if drafted.count(name) == 1 and name not in header and name not in own.columns
    }
    fields = tuple(
        replace(each, cells=replace(each.cells, column=columns[each.name]))
        if each.name in columns and not each.cells.column and not each.cells.columns
        else each
        for each in schema.fields
    )
    return replace(schema, fields=fields)


def read_inputs(
    source: Path, schema: Schema, options: SourceOptions
) -> tuple[Columns, Schema]:
    """Rows to predict from, of any kind that `sealift data seal` reads, and what they hold.

    Fields that the table does not have are left out, such as labels.

    Raises:
        UsageError, UnavailableError, MalformedError: as ``open_table``.
    """
    from sealift.data.sources.arrow import columns_of, is_parquet
    from sealift.data.sources.csvfiles.reader import column_names, read_rows
    from sealift.data.sources.csvfiles.structure import look_at
    from sealift.data.sources.problems import Problems
    from sealift.data.sources.table import infer_schema, is_text, open_table

    schema = replace(schema, leave_out=())
    if is_text(str(source)) and source.is_file():
        header = look_at(source, Problems(source.name), options.own).header
        schema = _named_alike(schema, header, options.own)
        here = options.own.schema_here(schema)
        there = {
            spec.name
            for spec in here.fields
            if set(column_names(spec, header, options.own)) <= set(header)
        }
        kept = [each for each in schema.fields if each.name in there]
        if not kept:
            raise MalformedError(
                f"{source.name} has none of the model's columns",
                why=f"they are {', '.join(each.name for each in schema.fields)}; the file has {', '.join(header)[:200]}",
                code="bad-request",
            )
        inputs = replace(schema, fields=tuple(kept))
        return read_rows(source, inputs, options.own), inputs
    there = {each.name for each in schema.fields}
    if is_parquet(str(source)) and source.exists() and not options.fields:
        there &= set(columns_of(source))
        options = replace(options, fields=tuple((name, name) for name in there))
    else:
        with suppress(MalformedError):  # of a source that does not say what it has
            there &= {each.name for each in infer_schema(source, options).fields}
    kept = [each for each in schema.fields if each.name in there]
    schema = replace(schema, fields=tuple(kept or schema.fields))
    table = open_table(source, schema, options)
    blocks = [*table.reader.columns(table.rows)]
    names = [each.name for each in schema.fields]
    return {n: np.concatenate([block[n] for block in blocks]) for n in names}, schema


def read_kept(source: Path, names: Sequence[str], own: OwnTable) -> Columns:
    """Columns of a table as it writes them, for an answer whose rows are to be known by them.

    Args:
        source: A text table, or Parquet.
        names: What the table calls the columns.
        own: What the owner says of a text table.

    Raises:
        UsageError: a source of another kind; a column that is not there, or stands twice.
        UnavailableError, MalformedError: it cannot be read.
    """
    from sealift.data.sources.arrow import columns_of, is_parquet, read_texts
    from sealift.data.sources.csvfiles.reader import read_columns_of_text
    from sealift.data.sources.csvfiles.structure import look_at
    from sealift.data.sources.problems import Problems
    from sealift.data.sources.table import is_text

    if not names:
        return {}
    if is_parquet(str(source)):
        _demand_once(names, columns_of(source), source)
        return dict(read_texts(source, names))
    if not (is_text(str(source)) and source.is_file()):
        raise UsageError("--keep can only be used with .csv, .tsv and Parquet files")
    structure = look_at(source, Problems(source.name), own)
    _demand_once(names, structure.header, source)
    return read_columns_of_text(structure, names)


def _demand_once(names: Sequence[str], header: Sequence[str], source: Path) -> None:
    for name in names:
        if header.count(name) != 1:
            many = "several columns" if name in header else "no column"
            raise UsageError(
                f"--keep: {source.name} has {many} {name[:80]!r}",
                fix=nearest(name, header) or f"It has {', '.join(header)[:200]}",
            )


def beside(kept: Columns, answer: Columns) -> Columns:
    """An answer behind the columns that are kept.

    Raises:
        UsageError: two would have one name.
    """
    for name in answer:
        if name in kept:
            raise UsageError(
                f"--keep {name}: the model's answer has that name, too",
                fix="Rename the column in the table",
            )
    return {**kept, **answer}


def with_known_cells(inputs: Schema, resources: Sequence[Resource]) -> Schema:
    """Inputs of text as the tables of an agreement have them, if they say nothing themselves."""
    known: dict[str, Field] = {}
    for each in resources:
        if each.part != "model":
            known |= {spec.name: spec for spec in schema_of(each).fields}
    fields = []
    for spec in inputs.fields:
        table = known.get(spec.name, spec)
        alike = (table.dtype, table.shape) == (spec.dtype, spec.shape)
        if alike and spec.cells == NO_RULES and not table.cells.missing:
            classes = spec.classes or table.classes
            spec = replace(spec, cells=table.cells, classes=classes)
        fields.append(spec)
    return replace(inputs, fields=tuple(fields))


def write_columns(path: Path, columns: Mapping[str, NDArray[Any]]) -> None:
    """Write an answer whole, in the form that the file's name says."""
    write_whole(path, _WRITERS[path.suffix](columns))


def to_line(columns: Mapping[str, NDArray[Any]]) -> str:
    """One line of JSON."""
    return json.dumps({name: _to_lists(each) for name, each in columns.items()})


def require_writable(path: Path | None) -> None:
    """Refuse early what writing would refuse after the work.

    Raises:
        UsageError: code ``exists``, or another kind of file.
        UnavailableError: ``cannot-write``, if its folder is not there or not ours.
    """
    if path is None:
        return
    if path.suffix not in _WRITERS:
        raise _other_kind(path)
    require_absent(path)
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UnavailableError(
            f"cannot write {path}",
            why="its folder does not exist, or you may not write to it",
            code="cannot-write",
        )


def gather(steps: Iterable[Mapping[str, NDArray[Any]]]) -> Columns:
    """A stream's steps as arrays of shape (rows, steps, ...)."""
    found = list(steps)
    names = found[0].keys() if found else ()
    return {name: np.stack([step[name] for step in found], axis=1) for name in names}


def _read_npz(raw: bytes, schema: Schema) -> Columns:
    with np.load(io.BytesIO(raw), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def _read_json(raw: bytes, schema: Schema) -> Columns:
    plain = json.loads(raw)
    if not isinstance(plain, dict):
        raise ValueError("the file is not an object with an array for each name")
    for name, rows in plain.items():
        if not isinstance(rows, list):
            raise ValueError(f"{name[:80]!r} is not a list of rows")
    return {
        name: _array(plain[name], _field(schema, name), [len(plain[name])])
        for name in plain
    }


def _read_text(path: Path, schema: Schema, own: OwnTable) -> Columns:
    """A column for each number: NAME, or NAME_0, NAME_1 ... of a field with a shape.

    Columns that are no input are left out.
    """
    from sealift.data.sources.csvfiles.reader import read_rows

    try:
        return read_rows(path, schema, own)
    except MalformedError as error:
        raise MalformedError(
            f"{path.name} does not fit the model's inputs",
            why="; ".join(filter(None, (error.what, str(error.why)))),
            fix=error.fix,
            problems=error.problems,
            code="bad-request",
        ) from None


def _array(values: Any, field: Field, rows: list[int]) -> NDArray[Any]:
    found = np.asarray(values)
    if found.size and not np.can_cast(found.dtype, _WIDEST[field.element.kind]):
        raise ValueError(f"{field.name} has values that are not {field.dtype}")
    array = np.asarray(values, dtype=field.dtype)
    if array.size != math.prod(field.shape) * rows[0]:
        raise ValueError(f"{field.name} has shape {array.shape}, which does not fit")
    return array.reshape(*rows, *field.shape)


def _field(schema: Schema, name: str) -> Field:
    for field in schema.fields:
        if field.name == name:
            return field
    raise ValueError(f"the model has no input {name[:80]!r}")


def _to_npz(columns: Mapping[str, NDArray[Any]]) -> bytes:
    raw = io.BytesIO()
    named: dict[str, Any] = dict(columns)
    np.savez(raw, **named)
    return raw.getvalue()


def _to_json(columns: Mapping[str, NDArray[Any]]) -> bytes:
    return to_line(columns).encode() + b"\n"


def _to_csv(columns: Mapping[str, NDArray[Any]]) -> bytes:
    flat = {name: each.reshape(len(each), -1) for name, each in columns.items()}
    head = [
        f"{name}_{i}" if columns[name].ndim > 1 else name
        for name, each in flat.items()
        for i in range(each.shape[1])
    ]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    for row in zip(*(_to_lists(each) for each in flat.values()), strict=True):
        writer.writerow([value for part in row for value in part])
    return text.getvalue().encode()


def _to_lists(array: NDArray[Any]) -> Any:
    """Numbers as short as they are: 0.1 of 32 bits is not 0.10000000149011612."""
    if array.dtype.kind == "f":
        array = array.astype(str).astype(np.float64)
    return array.tolist()


_WIDEST: Final = {"float": "float64", "int": "int64", "bool": "bool"}
_READERS: Final[dict[str, Callable[[bytes, Schema], Columns] | None]] = {
    ".npz": _read_npz,
    ".json": _read_json,
    ".csv": None,
    ".tsv": None,
}
_WRITERS: Final[dict[str, Callable[[Mapping[str, NDArray[Any]]], bytes]]] = {
    ".npz": _to_npz,
    ".json": _to_json,
    ".csv": _to_csv,
}


def _other_kind(path: Path) -> UsageError:
    known = ", ".join(_READERS)
    return UsageError(f"{path.name} does not end in {known}", code="other-file-kind")
