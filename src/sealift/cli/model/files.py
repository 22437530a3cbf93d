"""Rows from .npz, .json and .csv files by a model's inputs, and answers into such files."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sealift.cli.console import print_result, require_absent
from sealift.data.schema.schema import Field, Schema
from sealift.errors import MalformedError, UnavailableError, UsageError
from sealift.release.files import read_whole, write_whole

MAX_INPUT_BYTES: Final = 1 << 30
Columns = dict[str, NDArray[Any]]
# What numpy, json and csv raise on files that are not what their names say.
_UNREADABLE: Final = (
    ValueError, TypeError, KeyError, AttributeError, EOFError, OverflowError,
    RecursionError, NotImplementedError, zipfile.BadZipFile, zlib.error, csv.Error,
)  # fmt: skip


def read_columns(path: Path | None, schema: Schema) -> Columns:
    """Arrays by name, of the model's own element types.

    Raises:
        UsageError: no file, or one of another kind.
        UnavailableError: if it cannot be read.
        MalformedError: code ``bad-request``, if it does not fit the inputs.
    """
    if path is None:
        raise UsageError("the input rows are missing", fix="Name a file with rows")
    reader = _READERS.get(path.suffix)
    if reader is None:
        raise _other_kind(path)
    raw = read_whole(path, MAX_INPUT_BYTES)
    try:
        if not raw:
            raise ValueError("the file is empty")
        return reader(raw, schema)
    except _UNREADABLE as error:
        why = str(error)[:200].rstrip(".") or type(error).__name__
        raise MalformedError(
            f"{path.name} does not fit the model's inputs", why=why, code="bad-request"
        ) from None


def write_columns(path: Path | None, columns: Mapping[str, NDArray[Any]]) -> None:
    """Write an answer whole, or print it as one line of JSON."""
    if path is None:
        print_result(to_line(columns))
        return
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


def _read_csv(raw: bytes, schema: Schema) -> Columns:
    """A column for each number: NAME, or NAME_0, NAME_1 ... of a field with a shape."""
    table = list(csv.reader(io.StringIO(raw.decode("utf-8"))))
    if len(table) < 2:
        raise ValueError("there are no rows below the header")
    head, rows = table[0], table[1:]
    if any(len(row) != len(head) for row in rows):
        raise ValueError("a row does not have as many values as the header")
    places = {name: index for index, name in enumerate(head)}
    found = {}
    for field in schema.fields:
        names = [f"{field.name}_{i}" for i in range(field.elements)]
        wanted = names if field.shape else [field.name]
        missing = [name for name in wanted if name not in places]
        if missing:
            raise ValueError(f"there is no column {missing[0]}")
        parse = _PARSED[field.element.kind]
        values = [[parse(row[places[name]]) for name in wanted] for row in rows]
        found[field.name] = _array(values, field, [len(rows)])
    return found


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


_PARSED: Final[dict[str, Callable[[str], Any]]] = {
    "float": float,
    "int": int,
    "bool": {"0": False, "1": True, "false": False, "true": True}.__getitem__,
}
_WIDEST: Final = {"float": "float64", "int": "int64", "bool": "bool"}
_READERS: Final[dict[str, Callable[[bytes, Schema], Columns]]] = {
    ".npz": _read_npz,
    ".json": _read_json,
    ".csv": _read_csv,
}
_WRITERS: Final[dict[str, Callable[[Mapping[str, NDArray[Any]]], bytes]]] = {
    ".npz": _to_npz,
    ".json": _to_json,
    ".csv": _to_csv,
}


def _other_kind(path: Path) -> UsageError:
    known = ", ".join(_READERS)
    return UsageError(f"{path.name} does not end in {known}", code="other-file-kind")
