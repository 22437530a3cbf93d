"""Columns of numpy arrays to the bytes of rows and back, checked on the way.

Guarantees: what ``pack`` returns satisfies the schema in every value, has zero bytes
in every gap, and is the only byte string for those values. Its errors name file, row and
column, and show the offending value: they are for the owner, at home. ``demand_rows``,
the check on the other side, names the field alone, because what it says may leave the
accelerator (rule H8).
Source: spec/table.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sealift.data.schema.schema import Field, Schema
from sealift.errors import MalformedError
from sealift.ids import Buffer

Array = NDArray[Any]
Columns = Mapping[str, Array]
Locate = Callable[[int, Field, int], str]
"""(row in the block, field, element in the row) to words like "line 7, column x"."""


def row_dtype(schema: Schema) -> np.dtype[Any]:
    """The structured dtype whose items are rows: same offsets, same size."""
    return np.dtype(
        {
            "names": [field.name for field in schema.fields],
            "formats": [(numpy_dtype(f), f.shape) for f in schema.fields],
            "offsets": list(schema.offsets),
            "itemsize": schema.row_bytes,
        }
    )


def numpy_dtype(field: Field) -> np.dtype[Any]:
    """The little-endian dtype of one element."""
    return np.dtype(field.dtype).newbyteorder("<")


def pack(columns: Columns, schema: Schema, *, source: str, locate: Locate) -> bytes:
    """The bytes of a block of rows.

    Args:
        columns: One array of shape ``(rows, *field.shape)`` per field.
        schema: What the rows are.
        source: The file's name, for errors.
        locate: Says in the file's own terms where a value stands.

    Raises:
        MalformedError: wrong columns, dtype or shape, or a value that does not fit.
    """
    count = _row_count(columns, schema, source)
    block = np.zeros(count, dtype=row_dtype(schema))
    for field in schema.fields:
        column = columns[field.name]
        check_layout(column.dtype, column.shape, field, source=source)
        _check_values(column, field, source=source, locate=locate)
        block[field.name] = column
    return block.tobytes()


def unpack(raw: bytes | bytearray | memoryview, schema: Schema) -> dict[str, Array]:
    """Arrays of shape ``(rows, *field.shape)``; they share memory with ``raw``.

    Raises:
        MalformedError: if ``raw`` is not whole rows.
    """
    if len(raw) % schema.row_bytes:
        raise MalformedError(
            f"{len(raw):,} bytes are not a whole number of rows of {schema.row_bytes:,} bytes",
            code="bad-rows",
        )
    block = np.frombuffer(raw, dtype=row_dtype(schema))
    return {field.name: block[field.name] for field in schema.fields}


def check_names(names: list[str], schema: Schema, *, source: str) -> None:
    """Demand exactly the schema's fields, in any order.

    Raises:
        MalformedError: names the first missing or extra field.
    """
    known = [field.name for field in schema.fields]
    missing = [name for name in known if name not in names]
    extra = [name for name in names if name not in known]
    if missing:
        raise bad_table(
            f"{source} has no array {missing[0]!r}",
            fix=f"It must hold exactly: {', '.join(known)}",
        )
    if extra:
        raise bad_table(
            f"{source} has an array {extra[0][:80]!r} that is not in the schema",
            fix="Name those that are read with --fields, or add it to the schema",
        )


def check_layout(
    dtype: np.dtype[Any], shape: tuple[int, ...], field: Field, *, source: str
) -> None:
    """``_check_column`` for an array that is not read yet."""
    if dtype != numpy_dtype(field):
        raise bad_table(
            f"{source}: {field.name} is {dtype}, and the schema requires {field.dtype}",
            fix=f"Convert with .astype('{field.dtype}'), or change the schema",
        )
    if not shape or shape[1:] != field.shape:
        raise bad_table(
            f"{source}: {field.name} has the shape {shape}, and the schema "
            f"requires (rows, {', '.join(map(str, field.shape))})",
            fix="Reshape the array, or change the schema",
        )


def _check_values(column: Array, field: Field, *, source: str, locate: Locate) -> None:
    """Demand finite values and the field's bounds.

    Raises:
        MalformedError: names the first value that does not fit, and its place.
    """
    for fits, rule, fix in misfits(column, field):
        if fits.all():
            continue
        row, element = divmod(int(np.argmin(fits.reshape(-1))), field.elements)
        value = column.reshape(-1)[row * field.elements + element]
        raise MalformedError(
            f"{source}, {locate(row, field, element)}: {value} is not {rule}",
            fix=fix,
            code="bad-row",
        )


def misfits(column: Array, field: Field) -> Iterator[tuple[Array, str, str]]:
    """By each rule of a field: which values fit it, the rule in words, what to do."""
    low, high = field.bounds
    if field.element.kind == "bool":  # a file may hold any byte under this dtype
        yield column.view(np.uint8) <= 1, "true or false", "Correct the value"
    if field.element.kind == "float" and field.finite:
        fix = "Remove or fill the row, or set finite = false in the schema"
        yield np.isfinite(column), "finite", fix
    fix = "Correct the value, or change the schema"
    with np.errstate(invalid="ignore"):  # NaN is not below or above anything
        if low is not None:
            yield ~(column < low), f"at least {low}", fix
        if high is not None:
            yield ~(column > high), f"at most {high}", fix


def _row_count(columns: Columns, schema: Schema, source: str) -> int:
    check_names(list(columns), schema, source=source)
    lengths = {name: len(column) for name, column in columns.items()}
    check_lengths(lengths, source=source)
    return next(iter(lengths.values()))


def check_lengths(lengths: Mapping[str, int], *, source: str) -> None:
    """Demand the same number of rows in every column.

    Raises:
        MalformedError: names two columns that differ.
    """
    first, *rest = lengths
    for name in rest:
        if lengths[name] != lengths[first]:
            raise bad_table(
                f"{source}: {first} has {lengths[first]:,} rows, and {name} has {lengths[name]:,}",
                fix="Give every array one entry per row",
            )


def bad_table(what: str, *, why: str = "", fix: str = "") -> MalformedError:
    """A table that does not match its schema as a whole."""
    fix = fix or "Check that it is the right file and that it is complete"
    return MalformedError(what, why=why, fix=fix, code="bad-table")


BLOCK_BYTES: Final = 4 << 20  # bounds what a check allocates
Bytes = NDArray[np.uint8]


def demand_rows(rows: Buffer, schema: Schema) -> None:
    """Demand that every row satisfies the schema, gaps included.

    Args:
        rows: Whole rows, one after another.
        schema: What a row is.

    Raises:
        MalformedError: code ``bad-row``; names the field and the rule, no row, no value.
    """
    table = np.frombuffer(rows, dtype=np.uint8).reshape(-1, schema.row_bytes)
    step = max(1, BLOCK_BYTES // schema.row_bytes)
    for start in range(0, len(table), step):
        _check_block(table[start : start + step], schema)


def _check_block(block: Bytes, schema: Schema) -> None:
    end = 0
    for field, offset in zip(schema.fields, schema.offsets, strict=True):
        _demand(
            not block[:, end:offset].any(),
            field,
            "followed by padding that is not zero",
        )
        end = offset + field.size_bytes
        _check_field(block[:, offset:end], field)
    last = schema.fields[-1]
    _demand(not block[:, end:].any(), last, "followed by padding that is not zero")


def _check_field(raw: Bytes, field: Field) -> None:
    low, high = field.bounds
    if field.element.kind == "bool":
        _demand(not (raw > 1).any(), field, "not true or false")
    column: NDArray[Any] = raw.view(numpy_dtype(field))
    if field.element.kind == "float" and field.finite:
        _demand(bool(np.isfinite(column).all()), field, "not finite")
    if low is not None:
        _demand(not (column < low).any(), field, "below its minimum")
    if high is not None:
        _demand(not (column > high).any(), field, "above its maximum")


def _demand(fits: bool, field: Field, rule: str) -> None:
    if not fits:
        raise MalformedError(
            "a row does not fit its schema",
            field=field.name,
            why=f"one value is {rule}",
            fix="Ask its owner to run `sealift data seal` on the source: it names the row",
            code="bad-row",
        )
