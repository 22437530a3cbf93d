"""A folder that Hugging Face's ``Dataset.save_to_disk`` wrote (extra ``tables``).

Read with pyarrow alone. Columns: numbers, truth values, class labels, lists of one
length, arrays (``Array2D`` and above), and images stored in the file. Text, audio,
video, dates and lists of several lengths are refused: leave them out with ``--fields``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from sealift.data.schema.rows import Array, bad_table
from sealift.data.schema.schema import Field, Schema
from sealift.data.sources.arrow import (
    ArrowTable,
    Convert,
    check_columns,
    field_of_type,
    reading,
    to_array,
)
from sealift.data.sources.images import (
    class_field,
    class_numbers,
    decode,
    first_form,
    form_of,
)
from sealift.data.sources.source import (
    SourceOptions,
    TableSource,
    demand_distinct,
    made_field,
    unclear,
)
from sealift.errors import MalformedError, UnavailableError
from sealift.release.files import read_whole

_STATE: Final = "state.json"
_FACTS: Final = "dataset_info.json"
_SPLITS: Final = "dataset_dict.json"
_MAX_JSON_BYTES: Final = 16 << 20


@dataclass(frozen=True)
class _Saved:
    """What the folder's own files say."""

    name: str
    files: tuple[Path, ...]
    kinds: Any
    features: dict[str, Any]

    def feature(self, column: str, kind: str) -> dict[str, Any] | None:
        """The description of a column, if it is of that kind."""
        found = self.features.get(column)
        fits = isinstance(found, dict) and found.get("_type") == kind
        return found if fits else None


def _claims(place: str) -> bool:
    folder = Path(place)
    named = any((folder / name).is_file() for name in (_STATE, _SPLITS))
    # Without its state it is one that lacks a file, and that is said.
    return named or ((folder / _FACTS).is_file() and any(folder.glob("*.arrow")))


def _open(place: str, schema: Schema, options: SourceOptions) -> ArrowTable:
    saved = _look(Path(place))
    check_columns(saved.kinds.names, schema, options, saved.name)
    rows = sum(len(batch) for batch in _batches(saved))

    def batches(rows_per_batch: int, columns: list[str]) -> Iterator[Any]:
        for batch in _batches(saved):
            yield batch.select(columns)

    convert: dict[str, Convert] = {
        field.name: _image_reader(field, saved.name, options)
        for field in schema.fields
        if saved.feature(options.column(field.name), "Image")
    }
    for field in schema.fields:
        if found := saved.feature(options.column(field.name), "ClassLabel"):
            names = [str(each) for each in found.get("names") or ()]
            numbers = class_numbers(names, field, saved.name)
            if numbers != [*range(len(names))]:
                convert[field.name] = _renumber(np.array(numbers), saved.name)
    return ArrowTable(saved.name, schema, rows, batches, options, convert)


def _infer(place: str, options: SourceOptions) -> Schema:
    saved = _look(Path(place))
    chosen = options.chosen(list(saved.kinds.names))
    try:
        return Schema(tuple(_field(saved, name, col, options) for name, col in chosen))
    except (KeyError, TypeError, ValueError) as error:
        raise unclear(
            f"{saved.name} describes its columns in a form that is not supported",
            why=f"{type(error).__name__}: {error}",
        ) from error


def _field(saved: _Saved, name: str, column: str, options: SourceOptions) -> Field:
    if found := saved.feature(column, "ClassLabel"):
        if names := [str(each) for each in found.get("names") or ()]:
            return class_field(name, names, saved.name)
        return made_field(name, "int64", (), saved.name)
    for axes in range(2, 6):
        if found := saved.feature(column, f"Array{axes}D"):
            shape = tuple(int(length) for length in found["shape"])
            return made_field(name, str(found["dtype"]), shape, saved.name)
    for kind in ("Sequence", "List", "LargeList"):
        if (found := saved.feature(column, kind)) and found.get("length", -1) > 0:
            inner = saved.kinds.field(column).type.value_type
            inside = field_of_type(name, column, inner, saved.name)
            shape = (int(found["length"]), *inside.shape)
            return made_field(name, inside.dtype, shape, saved.name)
    if saved.feature(column, "Image"):
        batch = next((each for each in _batches(saved) if len(each)), None)
        if batch is None:
            raise bad_table(f"{saved.name} has no rows")
        first = batch.column(column)[0].as_py()
        raw = _image_bytes(first, f"{saved.name}, row 0, column {column}")
        form = first_form(raw, options, f"{saved.name}, row 0")
        return made_field(name, "uint8", form.shape, saved.name, description=form.mode)
    return field_of_type(name, column, saved.kinds.field(column).type, saved.name)


def _renumber(numbers: Array, source: str) -> Convert:
    """Labels as the agreed schema numbers their names."""

    def read(column: Any, spec: Field, first_row: int) -> Array:
        labels = to_array(column, spec, source=source, first_row=first_row)
        wrong = np.flatnonzero((labels < 0) | (labels >= len(numbers)))
        if len(wrong):
            raise bad_table(
                f"{source}, row {first_row + wrong[0]}, column {spec.name}: "
                f"{labels[wrong[0]]} is not one of its classes"
            )
        return numbers[labels].astype(labels.dtype)

    return read


def _image_reader(field: Field, source: str, options: SourceOptions) -> Convert:
    form = form_of(field, source)

    def read(column: Any, spec: Field, first_row: int) -> Array:
        decoded = []
        for row, image in enumerate(column.to_pylist(), first_row):
            place = f"{source}, row {row}, column {spec.name}"
            decoded.append(decode(_image_bytes(image, place), form, options, place))
        return np.stack(decoded) if decoded else np.empty((0, *form.shape), np.uint8)

    return read


def _image_bytes(image: Any, place: str) -> bytes:
    raw = image.get("bytes") if isinstance(image, dict) else None
    if not isinstance(raw, bytes):
        raise MalformedError(
            f"{place}: the image itself is not in the file",
            why="the cell is empty, or has only the path of another file",
            fix="Save the dataset with embedded images",
            code="bad-row",
        )
    return raw


def _look(folder: Path) -> _Saved:
    if (folder / _SPLITS).is_file():
        splits = _listed(_json(folder / _SPLITS), "splits") or ["train"]
        raise bad_table(
            f"{folder.name} has several splits",
            fix=f"Seal each split separately: {', '.join(str(folder / str(s)) for s in splits)}",
        )
    state = _json(folder / _STATE)
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise bad_table(
            f"{folder.name} was saved with an index beside it",
            fix="Call flatten_indices() and save it again",
        )
    files = tuple(
        folder / _plain_name(entry) for entry in _listed(state, "_data_files")
    )
    if not files:
        raise bad_table(f"{folder.name} names no data files")
    kinds = next(_streams(files)).schema
    demand_distinct(kinds.names, folder.name)
    return _Saved(folder.name, files, kinds, _features(kinds, files[0].name))


def _features(kinds: Any, source: str) -> dict[str, Any]:
    """What the schema's own metadata says of columns beyond their types."""
    raw = (kinds.metadata or {}).get(b"huggingface", b"{}")
    try:
        found = json.loads(raw)["info"]["features"] if raw != b"{}" else {}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise bad_table(f"{source} is damaged", why=str(error)) from error
    return found if isinstance(found, dict) else {}


def _batches(saved: _Saved) -> Iterator[Any]:
    for path, stream in zip(saved.files, _streams(saved.files), strict=True):
        if stream.schema.names != saved.kinds.names:
            raise bad_table(
                f"{path.name} has other columns than {saved.files[0].name}",
                fix="Save the dataset again",
            )
        with reading(path.name):
            yield from stream


def _streams(files: tuple[Path, ...]) -> Iterator[Any]:
    import pyarrow as arrow

    for path in files:
        try:
            file = arrow.OSFile(str(path))
        except OSError as error:
            absent = isinstance(error, FileNotFoundError)
            raise UnavailableError(
                f"cannot read {path}",
                why="there is no such file" if absent else str(error),
                fix=f"Copy the whole folder: {_STATE} names that file",
                code="cannot-read",
            ) from None
        with file, reading(path.name):
            yield arrow.ipc.open_stream(file)


def _json(path: Path) -> dict[str, Any]:
    raw = read_whole(path, _MAX_JSON_BYTES)
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise bad_table(f"{path.name} is not JSON", why=str(error)) from error
    if not isinstance(found, dict):
        raise bad_table(f"{path.name} does not have the form that save_to_disk writes")
    return found


def _listed(found: dict[str, Any], key: str) -> list[Any]:
    value = found.get(key) or []
    if not isinstance(value, list):
        raise bad_table(f"{_STATE}: {key!r} must be a list")
    return value


def _plain_name(entry: Any) -> str:
    name = entry.get("filename") if isinstance(entry, dict) else None
    if not isinstance(name, str) or Path(name).name != name:
        raise bad_table(f"{_STATE} names a file outside its folder")
    return name


def _has_names(place: str, column: str) -> bool:
    return _look(Path(place)).feature(column, "ClassLabel") is not None


SOURCE = TableSource(
    "folder of Dataset.save_to_disk", _claims, _open, _infer, has_names=_has_names
)
