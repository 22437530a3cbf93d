"""Arrays by name to the rows of a question, and rows of an answer back to arrays.

numpy and torch go in; torch is looked at by its ways, never imported here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sealift.data.schema.rows import numpy_dtype, pack, row_dtype
from sealift.data.schema.schema import Field, Schema
from sealift.errors import MalformedError
from sealift.ids import Buffer
from sealift.train.output.modelform import ModelForm

Arrays = Mapping[str, Any] | Any
_SAME_KIND: Final = {"f": "float", "i": "int", "u": "int", "b": "bool"}


@dataclass(frozen=True, slots=True)
class PackedQuestion:
    """Rows of a question.

    Attributes:
        rows: How many.
        payload: Their bytes.
        of_tensors: Whether they came as torch tensors.
    """

    rows: int
    payload: Buffer
    of_tensors: bool

    def part(self, start: int, most: int) -> PackedQuestion:
        """Up to ``most`` rows from ``start`` on."""
        row_bytes = len(self.payload) // self.rows
        end = min(self.rows, start + most)
        if (start, end) == (0, self.rows):
            return self
        view = memoryview(self.payload)[start * row_bytes : end * row_bytes]
        return PackedQuestion(end - start, view, self.of_tensors)


def pack_question(given: Arrays, form: ModelForm) -> PackedQuestion:
    """Rows from arrays.

    Args:
        given: By name; of a model with one input the array alone.
        form: Of the model.

    Raises:
        MalformedError: code ``bad-request``; names the field.
    """
    schema = form.inputs
    if not isinstance(given, Mapping):
        if len(schema.fields) != 1:
            raise _bad(f"give arrays by name: {_names(schema)}")
        given = {schema.fields[0].name: given}
    if set(given) != {field.name for field in schema.fields}:
        found = ", ".join(sorted(map(str, given)))[:200] or "nothing"
        raise _bad(f"it is asked with {_names(schema)}; given was {found}")
    of_tensors = any(hasattr(each, "detach") for each in given.values())
    columns = {field.name: _column(given[field.name], field) for field in schema.fields}
    lengths = {len(each) for each in columns.values()}
    if len(lengths) != 1 or not min(lengths):
        raise _bad("every array has as many rows as the others, one at least")
    return PackedQuestion(lengths.pop(), _pack(columns, schema), of_tensors)


def unpack_answer(
    rows: Buffer, schema: Schema, *, as_tensors: bool = False
) -> dict[str, Any]:
    """Arrays of shape (rows, ...) by name, in memory of their own."""
    block = np.frombuffer(rows, dtype=row_dtype(schema))
    found = {f.name: np.ascontiguousarray(block[f.name]).copy() for f in schema.fields}
    if not as_tensors:
        return found
    from torch import from_numpy  # whoever gave tensors has it loaded

    return {name: from_numpy(each) for name, each in found.items()}


def _pack(columns: Mapping[str, NDArray[Any]], schema: Schema) -> Buffer:
    if len(schema.fields) == 1 and schema.fields[0].size_bytes == schema.row_bytes:
        column = next(iter(columns.values()))
        return np.ascontiguousarray(column).data.cast("B")  # the server checks
    try:
        return pack(
            columns, schema, source="the request", locate=lambda row, f, _: f"row {row}"
        )
    except MalformedError as error:
        raise _bad(str(error)) from None


def _column(given: Any, field: Field) -> NDArray[Any]:
    array = given.detach().cpu().numpy() if hasattr(given, "detach") else given
    array = np.asarray(array)
    wanted = numpy_dtype(field)
    if array.shape[1:] != field.shape or not array.shape:
        shape = ", ".join(["rows", *map(str, field.shape)])
        raise _bad(f"{field.name} has shape {array.shape}, it must be ({shape})")
    kind = _SAME_KIND.get(array.dtype.kind)
    if kind != field.element.kind:
        raise _bad(f"{field.name} is {array.dtype}, it must be {field.dtype}")
    if array.dtype == wanted:
        return array
    with np.errstate(over="ignore"):
        cast = array.astype(wanted)
    if kind == "int" and not np.array_equal(cast, array):
        raise _bad(f"{field.name} has a value that {field.dtype} does not hold")
    return cast


def _names(schema: Schema) -> str:
    return ", ".join(field.name for field in schema.fields)


def _bad(why: str) -> MalformedError:
    return MalformedError(
        "the request does not fit the model's form", why=why, code="bad-request"
    )
