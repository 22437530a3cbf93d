"""Any dataset that has a length and rows by index: ``module:attribute``.

Its code is the owner's own and runs at home. A row is a dict of arrays and numbers, or
a tuple, whose entries ``--fields`` names in their order. Torch tensors are arrays.
"""

from __future__ import annotations

import importlib
import math
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from sealift.data.schema.rows import (
    Array,
    Columns,
    Locate,
    bad_table,
    check_names,
    numpy_dtype,
)
from sealift.data.schema.schema import Field, Schema
from sealift.data.sources.arrays import field_of
from sealift.data.sources.arrow import as_integer
from sealift.data.sources.source import (
    SourceOptions,
    TableSource,
    refuse_image_options,
    unclear,
)
from sealift.errors import MalformedError, SealiftError, UsageError

_PLACE: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


@dataclass(frozen=True)
class MapStyle:
    """An opened dataset; see ``TableReader``."""

    name: str
    dataset: Any
    schema: Schema
    options: SourceOptions
    rows: int

    def columns(self, rows_per_block: int) -> Iterator[Columns]:
        """See ``TableReader.columns``."""
        for start in range(0, self.rows, rows_per_block):
            end = min(start + rows_per_block, self.rows)
            rows = [self._row(index) for index in range(start, end)]
            yield {
                field.name: self._column(rows, field, start)
                for field in self.schema.fields
            }

    def locate(self, first_row: int) -> Locate:
        """See ``TableReader.locate``; rows count from 0."""
        return lambda row, spec, element: f"row {first_row + row}, {spec.name}"

    def _row(self, index: int) -> dict[str, Any]:
        row = _row_of(self.dataset, index, self.options, self.name)
        check_names(list(row), self.schema, source=f"{self.name}, row {index}")
        return row

    def _column(self, rows: list[dict[str, Any]], field: Field, start: int) -> Array:
        entries = [
            _entry(row[field.name], field, f"{self.name}, row {index}: {field.name}")
            for index, row in enumerate(rows, start)
        ]
        for index, entry in enumerate(entries, start):
            if entry.shape != field.shape or entry.dtype != entries[0].dtype:
                raise MalformedError(
                    f"{self.name}, row {index}: {field.name} is {entry.dtype} {list(entry.shape)}, "
                    f"and the schema requires {field.dtype} {list(field.shape)}",
                    fix="Make the dataset return rows of one form",
                    code="bad-row",
                )
        return as_integer(np.stack(entries), field, self.name, start)


def _claims(place: str) -> bool:
    return bool(_PLACE.fullmatch(place)) and not Path(place).exists()


def _open(place: str, schema: Schema, options: SourceOptions) -> MapStyle:
    refuse_image_options(options, "a dataset by its import path")
    dataset = _load(place)
    return MapStyle(place, dataset, schema, options, _length(dataset, place))


def _infer(place: str, options: SourceOptions) -> Schema:
    dataset = _load(place)
    if not _length(dataset, place):
        raise bad_table(f"{place} has no rows")
    row = _row_of(dataset, 0, options, place)
    arrays = {
        name: _as_array(value, f"{place}, row 0: {name}") for name, value in row.items()
    }
    return Schema(
        tuple(
            field_of(name, entry.dtype, (1, *entry.shape), place)
            for name, entry in arrays.items()
        )
    )


def _load(place: str) -> Any:
    module, _, attribute = place.partition(":")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` finds modules
    try:
        found: Any = importlib.import_module(module)
        for name in attribute.split("."):
            found = getattr(found, name)
        if isinstance(found, type) or not hasattr(found, "__getitem__"):
            found = found() if callable(found) else found
    except SealiftError:
        raise
    except (Exception, SystemExit) as error:  # the owner's code may raise anything
        raise UsageError(
            f"cannot load {place}",
            why=f"{type(error).__name__}: {error}",
            code="bad-dataset",
        ) from error
    if not (hasattr(found, "__getitem__") and hasattr(found, "__len__")):
        raise UsageError(
            f"{place} has no length, or no rows by index", code="bad-dataset"
        )
    return found


def _length(dataset: Any, place: str) -> int:
    try:
        return len(dataset)
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"{place} cannot report its length",
            why=f"{type(error).__name__}: {error}",
            code="bad-dataset",
        ) from error


def _row_of(
    dataset: Any, index: int, options: SourceOptions, source: str
) -> dict[str, Any]:
    try:
        row = dataset[index]
    except (Exception, SystemExit) as error:
        raise MalformedError(
            f"{source}, row {index}: the dataset raised an error",
            why=f"{type(error).__name__}: {error}",
            fix="Correct the dataset's code or its files",
            code="bad-row",
        ) from error
    return _named(row, options, f"{source}, row {index}")


def _named(row: Any, options: SourceOptions, source: str) -> dict[str, Any]:
    if isinstance(row, Mapping):
        for name in row:
            if not isinstance(name, str):
                raise unclear(
                    f"{source}: {name!r} is not a valid name",
                    fix="Return a dict with text keys",
                )
        return {field: row[col] for field, col in options.chosen(list(row))}
    entries = row if isinstance(row, (tuple, list)) else (row,)
    names = [field for field, _ in options.fields]
    if len(names) != len(entries):
        raise unclear(
            f"{source}: its {len(entries)} values have no names",
            fix="Name them in order, for example --fields x,label",
        )
    return dict(zip(names, entries, strict=True))


def _entry(value: Any, field: Field, place: str) -> Array:
    """A number as Python has it takes the field's dtype; an array keeps its own."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or field.element.kind != "float":
        return _as_array(value, place)
    with np.errstate(over="ignore"):
        try:
            stored = np.asarray(value, dtype=numpy_dtype(field))
        except OverflowError:  # an integer that no float64 holds
            stored = np.asarray(np.inf)
    # As in CSV: only an infinity that someone wrote is one.
    if np.isinf(stored) and value not in (math.inf, -math.inf):
        raise MalformedError(
            f"{place}: {value} does not fit {field.dtype}",
            fix="Correct the value, or change the schema",
            code="bad-row",
        )
    return stored


def _as_array(value: Any, place: str) -> Array:
    try:
        return np.asarray(value)
    except Exception as error:  # torch, for one, raises several kinds
        raise MalformedError(
            f"{place} is not an array of numbers",
            why=f"{type(error).__name__}: {error}",
            fix="Use lists of one length, or detached CPU tensors of a dtype that numpy has",
            code="bad-row",
        ) from error


SOURCE = TableSource(
    "dataset by its import path, MODULE:ATTRIBUTE", _claims, _open, _infer
)
