"""Columns of Arrow tables to arrays: numbers, truth values, and lists of one length.

What has no fixed size has no place in a row: text, dates, decimals, dictionaries and
lists of several lengths are refused with the column's name. A null is refused with its
row, never taken for a zero. Integers go into any integer dtype that holds the value.
"""

from __future__ import annotations

from shlex import quote
from typing import Any

import numpy as np

from sealift.data.schema.rows import Array, bad_table, numpy_dtype
from sealift.data.schema.schema import DTYPES, Field
from sealift.data.sources.source import unclear
from sealift.errors import MalformedError

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
            raise unclear(
                f"{source}: {column[:80]} holds {inner}, whose length it does not say"
            )
        shape.append(inner.list_size)
        inner = inner.value_type
    dtype = _ARROW_NAMES.get(str(inner), str(inner))
    if dtype not in DTYPES:
        raise unclear(
            f"{source}: {column[:80]} is {inner}, which no schema has",
            fix="Leave it out with --fields, or convert it to one of "
            + ", ".join(DTYPES),
        )
    return made_field(name, dtype, tuple(shape), source)


def made_field(
    name: str, dtype: str, shape: tuple[int, ...], source: str, **more: Any
) -> Field:
    """A field, or why there is none of that name.

    Raises:
        MalformedError: ``no-schema``.
    """
    try:
        return Field(name, dtype, shape, **more)
    except MalformedError as error:
        raise unclear(
            f"{source}: {name[:80]!r} makes no field",
            why=error.what,
            fix=f"Give it a name with --fields {quote('NAME=' + name[:80])}",
        ) from None


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
            f"{source}, row {row}, column {field.name}: "
            f"{lengths[wrong[0]]} values, the schema says {length}",
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
        f"{source}: {field.name} is {column.type}, the schema says {field.dtype}",
        fix="Convert the column, or leave it out with --fields",
    )


def _other_shape(source: str, field: Field, found: str) -> MalformedError:
    return bad_table(
        f"{source}: {field.name} has {found} in a row, "
        f"the schema wants {list(field.shape)}",
        fix="Change the schema",
    )
