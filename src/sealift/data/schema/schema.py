"""What a row of a table is made of, and where each field lies in its bytes.

A row has a fixed size. Fields stand in the schema's order, little-endian, row-major,
each at an offset that is a multiple of 8; the gaps and the end are zero bytes, so
``row_bytes`` is a multiple of 8 as well and every field can be viewed in place.
A sealed file's plaintext is its rows, one after another, and nothing else.

Guarantees: a ``Schema`` that exists is consistent (names, sizes, bounds that its
dtypes can hold). Standard library only, so that it can be read without numpy.
Source: spec/table.md.
"""

from __future__ import annotations

import json
import math
import re
import struct
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from sealift.data.schema.cells import NO_RULES, CellRules, bad_schema, check_cells
from sealift.errors import quote_foreign

ALIGNMENT_BYTES: Final = 8
MAX_FIELDS: Final = 256
MAX_DIMENSIONS: Final = 8
MAX_ROW_BYTES: Final = 16 << 20
MAX_EXACT_INTEGER: Final = 2**53 - 1  # what canonical JSON carries exactly

_MAX_SAID: Final = 20  # categories on a line
_FIELD_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


@dataclass(frozen=True, slots=True)
class DType:
    """An element type: its size, and the numbers that it can hold."""

    name: str
    size_bytes: int
    kind: str  # "float", "int" or "bool"
    lowest: float
    highest: float

    def holds(self, number: float) -> bool:
        """Whether ``number`` lies within the range of this type."""
        return self.lowest <= number <= self.highest

    def rounded(self, number: float) -> float:
        """``number`` as this type stores it: bounds are compared in the type."""
        code = {2: "<e", 4: "<f", 8: "<d"}[self.size_bytes]
        return float(struct.unpack(code, struct.pack(code, number))[0])


def _integer(name: str, size_bytes: int, *, signed: bool) -> DType:
    bits = 8 * size_bytes - signed
    return DType(name, size_bytes, "int", -(2**bits) if signed else 0, 2**bits - 1)


def _floating(name: str, size_bytes: int, highest: float) -> DType:
    return DType(name, size_bytes, "float", -highest, highest)


DTYPES: Final[dict[str, DType]] = {
    dtype.name: dtype
    for dtype in (
        _floating("float64", 8, struct.unpack("<d", b"\xff" * 6 + b"\xef\x7f")[0]),
        _floating("float32", 4, struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]),
        _floating("float16", 2, 65504.0),
        _integer("int64", 8, signed=True),
        _integer("int32", 4, signed=True),
        _integer("int16", 2, signed=True),
        _integer("int8", 1, signed=True),
        _integer("uint8", 1, signed=False),
        DType("bool", 1, "bool", 0, 1),
    )
}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a row.

    Args:
        name: Lower case, digits and ``_``; also the name of the tensor in a batch.
        dtype: A key of ``DTYPES``.
        shape: Without the row axis; ``()`` is a single number.
        finite: Refuse NaN and infinities (floats only; the default for floats).
        minimum: Smallest value allowed, inclusive.
        maximum: Largest value allowed, inclusive.
        classes: Values are labels ``0 .. classes - 1`` (integers only).
        description: For people who read the agreement.
        cells: How text becomes its numbers.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    finite: bool = True
    minimum: float | None = None
    maximum: float | None = None
    classes: int | None = None
    description: str = ""
    cells: CellRules = NO_RULES

    def __post_init__(self) -> None:
        _check_field(self)

    @property
    def element(self) -> DType:
        """The element type."""
        return DTYPES[self.dtype]

    @property
    def elements(self) -> int:
        """Numbers in one row of this field."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes in one row of this field, without padding."""
        return self.elements * self.element.size_bytes

    @property
    def bounds(self) -> tuple[float | None, float | None]:
        """Smallest and largest allowed value, as the element type stores them."""
        if self.classes is not None:
            return 0, self.classes - 1
        if self.element.kind != "float":
            return self.minimum, self.maximum
        low, high = self.minimum, self.maximum
        rounded = self.element.rounded
        return (
            None if low is None else rounded(low),
            None if high is None else rounded(high),
        )


@dataclass(frozen=True)
class Schema:
    """The fields of a row, in order.

    Args:
        fields: At least one.
        description: For people who read the agreement.
        leave_out: Columns of the source that are in no field.

    Raises:
        MalformedError: when made without fields, with a name twice, or too large.
    """

    fields: tuple[Field, ...]
    description: str = ""
    leave_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= len(self.fields) <= MAX_FIELDS:
            raise bad_schema("fields", f"a schema must have 1 to {MAX_FIELDS:,} fields")
        names = [field.name for field in self.fields]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise bad_schema(
                    f"fields[{index}].name", f"the name {name!r} appears twice"
                )
        if self.row_bytes > MAX_ROW_BYTES:
            raise bad_schema("fields", f"a row is larger than {MAX_ROW_BYTES:,} bytes")
        for index, field in enumerate(self.fields):
            if field.cells.missing:
                _check_missing(self.fields, index)

    @property
    def agreed(self) -> Schema:
        """The same, without what concerns nobody but the owner of a source."""
        fields = (replace(each, cells=each.cells.agreed) for each in self.fields)
        return Schema(tuple(fields), self.description)

    @property
    def columns(self) -> bytes:
        """What a sealed table says of itself: names, dtypes and shapes in their order.

        Canonical JSON (spec/table.md). Bounds, classes and descriptions are not in it:
        an owner may add some to a schema and go on reading.
        """
        columns = [[each.name, each.dtype, list(each.shape)] for each in self.fields]
        return json.dumps(columns, separators=(",", ":")).encode()

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where each field starts in a row, in bytes."""
        starts, end = [], 0
        for field in self.fields:
            starts.append(end)
            end = aligned(end + field.size_bytes)
        return tuple(starts)

    @cached_property
    def row_bytes(self) -> int:
        """Size of a row in bytes; a multiple of 8."""
        return aligned(self.offsets[-1] + self.fields[-1].size_bytes)


def say_categories(field: Field) -> str:
    """Which number stands for which category, for the owner of a table of numbers."""
    texts = field.cells.categories
    said = [f"{n} = {quote_foreign(text)}" for n, text in enumerate(texts[:_MAX_SAID])]
    if more := len(texts) - len(said):
        said.append(f"and {more:,} more")
    return f"{field.name}: {', '.join(said)}, as the schema numbers them"


def is_field_name(name: str) -> bool:
    """Whether a field may be called so."""
    return _FIELD_NAME.fullmatch(name) is not None


def aligned(size_bytes: int) -> int:
    """``size_bytes`` rounded up to the alignment of fields and rows."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _check_field(field: Field) -> None:
    if not is_field_name(field.name):
        raise bad_schema(
            "name",
            "a field's name must begin with a-z, then have a-z, 0-9 and '_' (at most 63 characters)",
        )
    if field.dtype not in DTYPES:
        known = ", ".join(DTYPES)
        raise bad_schema("dtype", "unknown dtype", fix=f"Use one of {known}")
    if len(field.shape) > MAX_DIMENSIONS:
        raise bad_schema("shape", f"a shape may have at most {MAX_DIMENSIONS} axes")
    if any(not 1 <= length <= MAX_ROW_BYTES for length in field.shape):
        raise bad_schema("shape", "every length in a shape must be at least 1")
    if field.size_bytes > MAX_ROW_BYTES:
        raise bad_schema("shape", f"a row is larger than {MAX_ROW_BYTES:,} bytes")
    if field.element.kind != "float" and not field.finite:
        raise bad_schema("finite", "only a float field can allow NaN and infinities")
    _check_classes(field)
    _check_bounds(field)
    check_cells(field.cells, field.element.kind, field.classes)
    if field.cells.columns and len(field.cells.columns) != field.elements:
        raise bad_schema(
            "columns",
            f"the shape has {field.elements:,} elements, and columns has {len(field.cells.columns):,} names",
        )
    _check_empty(field)


def _check_classes(field: Field) -> None:
    if field.classes is None:
        return
    if field.element.kind != "int":
        raise bad_schema("classes", "only an integer field can have classes")
    if not 1 <= field.classes <= min(field.element.highest + 1, MAX_EXACT_INTEGER):
        raise bad_schema("classes", f"classes must be at least 1 and fit {field.dtype}")
    if field.minimum is not None or field.maximum is not None:
        raise bad_schema(
            "classes", "classes already limits the values", fix="Drop min, max"
        )


def _check_empty(field: Field) -> None:
    number = field.cells.empty
    if isinstance(number, str):
        if number == "nan" and not field.cells.categories and field.finite:
            raise bad_schema("empty", "nan needs finite = false")
    elif number is not None:
        low, high = field.bounds
        below, above = (
            low is not None and number < low,
            high is not None and number > high,
        )
        if not field.element.holds(number) or below or above:
            raise bad_schema(
                "empty", "the value of an empty cell does not fit the field"
            )


def _check_missing(fields: tuple[Field, ...], index: int) -> None:
    field = fields[index]
    of = [each for each in fields if each.name == field.cells.missing]
    if not of or of[0].cells.empty is None or of[0].shape != field.shape:
        raise bad_schema(
            f"fields[{index}].missing",
            "it must name another field of the same shape that has a value for empty cells",
        )


def _check_bounds(field: Field) -> None:
    for path, bound in (("min", field.minimum), ("max", field.maximum)):
        if bound is not None:
            _check_bound(field, path, bound)
    low, high = field.minimum, field.maximum
    if low is not None and high is not None and low > high:
        raise bad_schema("min", "min is larger than max")


def _check_bound(field: Field, path: str, bound: float) -> None:
    if field.element.kind == "bool":
        raise bad_schema(path, "a bool field cannot have bounds")
    if field.element.kind == "int" and not isinstance(bound, int):
        raise bad_schema(path, "the bound of an integer field must be an integer")
    if not field.element.holds(bound):  # NaN and infinities end here too
        raise bad_schema(path, f"the bound does not fit {field.dtype}")
    if abs(bound) > MAX_EXACT_INTEGER:
        raise bad_schema(
            path, "a bound must be within +-(2^53 - 1)", fix="Leave it out"
        )
