"""Parquet, and all tables that Arrow reads in batches.

Numbers, truth values and lists of one length become arrays; a null, or a list of another
length, is refused with its row. Batches are validated in full: a damaged file may say
offsets that lead elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from sealift.data.schema.rows import (
    Array,
    Columns,
    Locate,
    bad_table,
    check_names,
    numpy_dtype,
)
from sealift.data.schema.schema import DTYPES, Field, Schema, is_field_name
from sealift.data.sources.source import (
    SourceOptions,
    TableSource,
    demand_distinct,
    field_name,
    made_field,
    refuse_image_options,
    unclear,
)
from sealift.errors import MalformedError

_PANDAS_INDEX = re.compile(r"__index_level_\d+__")
_ARROW_NAMES = {"double": "float64", "float": "float32", "halffloat": "float16"}


def field_of_type(name: str, column: str, kind: Any, source: str) -> Field:
    """The field that an Arrow type says.

    Args:
        name: The field's name.
        column: The column's, for errors.
        kind: A ``pyarrow.DataType``.
        source: The file's name, for errors.

    Raises:
        MalformedError: ``no-schema``, if its values have no fixed size or no dtype.
    """
    shape: list[int] = []
    inner = getattr(kind, "storage_type", kind)
    if hasattr(kind, "shape"):  # a tensor of fixed shape
        shape, inner = list(kind.shape), kind.value_type
    while hasattr(inner, "value_type"):
        if not hasattr(inner, "list_size"):
            raise unclear(f"{source}: {column[:80]} holds {inner} of unknown length")
        shape.append(inner.list_size)
        inner = inner.value_type
    dtype = _ARROW_NAMES.get(str(inner), str(inner))
    if dtype not in DTYPES:
        raise unclear(
            f"{source}: {column[:80]} has the type {inner}, which is not supported",
            fix=f"Leave it out with --fields, or convert it to one of {', '.join(DTYPES)}; "
            "or save the table as CSV, where texts become categories, and dates days",
        )
    return made_field(name, dtype, tuple(shape), source)


def to_array(column: Any, field: Field, *, source: str, first_row: int) -> Array:
    """An Arrow array as an array of shape ``(rows, *field.shape)``.

    Args:
        column: A ``pyarrow.Array``.
        field: What it must be.
        source: The file's name, for errors.
        first_row: The number of its first row, for errors.

    Raises:
        MalformedError: names the row of a null, or of a list of another length.
    """
    rows, shape = len(column), field.shape
    if hasattr(column.type, "shape"):
        column, shape = _stored_tensors(column, field, source), (field.elements,)
    _demand_no_nulls(column, field, source, first_row, per_row=1)
    per_row = 1
    for length in shape if hasattr(column.type, "value_type") else ():
        first = (first_row, per_row)
        column = _flattened(column, length, field, source, first)
        per_row *= length
        _demand_no_nulls(column, field, source, first_row, per_row=per_row)
        if not hasattr(column.type, "value_type"):
            break
    array = _numbers(column, field, source)
    if array.size != rows * field.elements:
        raise _other_shape(source, field, f"{array.size // max(rows, 1)} numbers")
    stored = as_integer(array, field, source, first_row)
    return stored.reshape(rows, *field.shape)


def as_integer(array: Array, field: Field, source: str, first_row: int) -> Array:
    """Integers as the field's integer dtype, if it holds them all.

    Raises:
        MalformedError: names the first that it does not hold.
    """
    wanted = numpy_dtype(field)
    if array.dtype == wanted or not (array.dtype.kind in "iu" and wanted.kind in "iu"):
        return array
    limits = np.iinfo(wanted)
    wrong = (array < limits.min) | (array > limits.max)
    if wrong.any():
        first = int(np.argmax(wrong.reshape(-1)))
        raise MalformedError(
            f"{source}, row {first_row + first // field.elements}, column {field.name}: "
            f"{array.reshape(-1)[first]} does not fit {field.dtype}",
            fix="Correct the value, or change the schema",
            code="bad-row",
        )
    return array.astype(wanted)


def _numbers(column: Any, field: Field, source: str) -> Array:
    name = _ARROW_NAMES.get(str(column.type), str(column.type))
    if name not in DTYPES and not name.startswith("uint"):
        raise _other_kind(column, field, source)
    array: Array = column.to_numpy(zero_copy_only=False)
    return array


def _stored_tensors(column: Any, field: Field, source: str) -> Any:
    """The numbers of tensors, which lie one after another in a list per row."""
    if tuple(column.type.shape) != field.shape or column.type.permutation is not None:
        raise _other_shape(source, field, f"tensors {column.type}")
    return column.storage


def _flattened(
    column: Any, length: int, field: Field, source: str, first: tuple[int, int]
) -> Any:
    """The lists' values one after another, once all lists have the one length.

    ``first``: the number of the first row, and how many lists there are in a row.
    """
    if hasattr(column.type, "list_size"):
        if column.type.list_size != length:
            raise _other_shape(source, field, f"lists of {column.type.list_size}")
        return column.flatten()
    if hasattr(column, "sizes"):  # a view: its offsets do not say where lists end
        raise _other_kind(column, field, source)
    lengths = np.diff(column.offsets.to_numpy())
    wrong = np.flatnonzero(lengths != length)
    if len(wrong):
        row = first[0] + int(wrong[0]) // first[1]
        raise MalformedError(
            f"{source}, row {row}, column {field.name}: it has "
            f"{lengths[wrong[0]]} values, and the schema requires {length}",
            fix="Correct the row, or change the schema",
            code="bad-row",
        )
    return column.flatten()


def _demand_no_nulls(
    column: Any, field: Field, source: str, first_row: int, *, per_row: int
) -> None:
    if not column.null_count:
        return
    nulls = column.is_null().to_numpy(zero_copy_only=False)
    row = first_row + int(np.argmax(nulls)) // per_row
    raise MalformedError(
        f"{source}, row {row}, column {field.name}: there is no value",
        fix="Fill it or remove the row",
        code="bad-row",
    )


def _other_kind(column: Any, field: Field, source: str) -> MalformedError:
    return bad_table(
        f"{source}: {field.name} is {column.type}, and the schema requires {field.dtype}",
        fix="Convert the column, or leave it out with --fields",
    )


def _other_shape(source: str, field: Field, found: str) -> MalformedError:
    return bad_table(
        f"{source}: {field.name} has {found} per row, and the schema requires {list(field.shape)}",
        fix="Change the schema",
    )


Batches = Callable[[int, list[str]], Iterator[Any]]
"""(rows per batch, columns) to ``pyarrow.RecordBatch``es of at most as many rows."""
Convert = Callable[[Any, Field, int], Array]
"""(column, field, number of its first row) to an array."""


@dataclass
class ArrowTable:
    """An opened table; see ``TableReader``.

    Attributes:
        name: The file's name, for errors.
        schema: What rows are to be.
        rows: How many.
        batches: Reads it from the start.
        options: Which column each field is in.
        convert: For columns that are no numbers, by field.
    """

    name: str
    schema: Schema
    rows: int
    batches: Batches
    options: SourceOptions
    convert: dict[str, Convert] = field(default_factory=dict)

    def columns(self, rows_per_block: int) -> Iterator[Columns]:
        """See ``TableReader.columns``."""
        wanted = [self.options.column(each.name) for each in self.schema.fields]
        done = 0
        for batch in self.batches(rows_per_block, wanted):
            with reading(self.name):
                batch.validate(full=True)  # offsets that lead elsewhere, above all
            for start in range(0, len(batch), rows_per_block):
                part = batch.slice(start, rows_per_block)
                yield {
                    each.name: self._array(part, each, done)
                    for each in self.schema.fields
                }
                done += len(part)

    def locate(self, first_row: int) -> Locate:
        """See ``TableReader.locate``; rows count from 0."""

        def words(row: int, spec: Field, element: int) -> str:
            column = self.options.column(spec.name)
            return f"row {first_row + row}, column {column}"

        return words

    def _array(self, batch: Any, spec: Field, first_row: int) -> Array:
        column = batch.column(self.options.column(spec.name))
        if spec.name in self.convert:
            return self.convert[spec.name](column, spec, first_row)
        return to_array(column, spec, source=self.name, first_row=first_row)


class reading:  # noqa: N801 - used as a context manager, like contextlib's
    """Turn what pyarrow raises about a file's content into ``MalformedError``."""

    def __init__(self, source: str) -> None:
        self._source = source

    def __enter__(self) -> None:
        """Nothing to begin."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Translate; an ``OSError`` with a number is the disk's, and stays."""
        import pyarrow

        damaged = isinstance(error, pyarrow.ArrowException) or (
            isinstance(error, OSError) and error.errno is None
        )
        if damaged and not isinstance(error, MalformedError):
            why = str(error).rstrip(".")
            raise bad_table(f"{self._source} is damaged", why=why) from error


def check_columns(
    columns: list[str], schema: Schema, options: SourceOptions, source: str
) -> None:
    """Demand that there is a column for every field, and no other that was not left out.

    Raises:
        MalformedError: names the first that is missing or extra.
    """
    chosen = [name for name, _ in options.chosen(columns)]
    check_names(chosen, schema, source=source)


def _schema_of_arrow(kinds: Any, options: SourceOptions, source: str) -> Schema:
    """The schema that an Arrow schema says.

    Raises:
        MalformedError: ``no-schema``.
    """
    chosen = options.chosen(list(kinds.names))
    if not chosen:
        raise bad_table(f"{source} has no columns")
    if not options.fields and any(not is_field_name(name) for name, _ in chosen):
        raise _other_names([name for name, _ in chosen], source)
    return Schema(
        tuple(
            field_of_type(name, column, kinds.field(column).type, source)
            for name, column in chosen
        )
    )


def _other_names(columns: list[str], source: str) -> MalformedError:
    """Columns that cannot be called as they are: advice that keeps all but an index."""
    index = [name for name in columns if _PANDAS_INDEX.fullmatch(name)]
    taken: set[str] = set()
    fields = []
    for column in columns:
        if column not in index:
            name = field_name(column, taken)
            taken.add(name)
            fields.append(name if name == column else f"{name}={column}")
    others = [each for each in columns if each not in index and not is_field_name(each)]
    if others:
        why = f"{others[0][:80]!r} cannot be the name of a field"
    else:
        why = f"{index[0]!r} is the index that pandas wrote, and no column of the table"
    return unclear(
        f"{source} has a column that cannot be a field as it is",
        why=why,
        fix=f"Name the columns that you want: --fields {quote(','.join(fields))}",
    )


SUFFIXES = (".parquet", ".pq")


def is_parquet(place: str) -> bool:
    """Whether a place looks like a Parquet file, or a folder of such."""
    path = Path(place)
    if path.is_dir():
        return any(_ends_so(each) for each in path.iterdir())
    return _ends_so(path)


def _ends_so(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def _open(place: str, schema: Schema, options: SourceOptions) -> ArrowTable:
    refuse_image_options(options, "Parquet")
    path = Path(place)
    files = _files(path)
    rows = sum(file.metadata.num_rows for file in _opened(files))
    check_columns(_kinds(files).names, schema, options, path.name)

    def batches(rows_per_batch: int, columns: list[str]) -> Iterator[Any]:
        for each, file in zip(files, _opened(files), strict=True):
            with reading(each.name):
                yield from file.iter_batches(rows_per_batch, columns=columns)

    return ArrowTable(path.name, schema, rows, batches, options)


def _infer(place: str, options: SourceOptions) -> Schema:
    path = Path(place)
    return _schema_of_arrow(_kinds(_files(path)), options, path.name)


def columns_of(path: Path) -> list[str]:
    """What the columns of a Parquet file or folder are called, in their order.

    Raises:
        MalformedError: it is damaged, or two files of a folder have different columns.
        OSError: it cannot be read.
    """
    return list(_kinds(_files(path)).names)


def read_texts(path: Path, names: Sequence[str]) -> Columns:
    """Columns of a Parquet file or folder as text, in memory; "" where there is no value.

    Raises:
        MalformedError: it is damaged, or a column has values that are no text and no number.
        OSError: it cannot be read.
    """
    import pyarrow

    found: dict[str, list[str]] = {name: [] for name in names}
    for file in _opened(_files(path)):
        with reading(path.name):
            for batch in file.iter_batches(columns=[*names]):
                for name in names:
                    texts = batch.column(name).cast(pyarrow.string())
                    found[name] += texts.fill_null("").to_pylist()
    return {name: np.array(texts, str) for name, texts in found.items()}


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(each for each in path.iterdir() if _ends_so(each))


def _opened(files: list[Path]) -> Iterator[Any]:
    import pyarrow.parquet as parquet

    for path in files:
        with reading(path.name):
            file = parquet.ParquetFile(path, page_checksum_verification=True)
        with file:
            yield file


def _kinds(files: list[Path]) -> Any:
    """The one Arrow schema of all files."""
    first = None
    for path, file in zip(files, _opened(files), strict=True):
        kinds = file.schema_arrow.remove_metadata()
        if first is not None and kinds != first:
            raise bad_table(
                f"{path.name} has other columns than {files[0].name}",
                fix="Seal each file separately",
            )
        first = kinds
        demand_distinct(kinds.names, path.name)
    return first


SOURCE = TableSource("Parquet file or folder", is_parquet, _open, _infer)
