"""What of a model's answer leaves: the form's fields, rounded, and nothing else (rule H8).

Answers come from a process that a recipe may have taken over: shapes follow from the
number of rows asked, numbers must be finite and within their bounds.
"""

from __future__ import annotations

import numpy as np

from sealift.data.schema.rows import demand_rows, numpy_dtype
from sealift.errors import JobError, MalformedError
from sealift.train.output.modelform import Fields


def let_out_rows(rows: bytearray, fields: Fields) -> bytearray:
    """Round in place, and demand that every row fits the form.

    Args:
        rows: Whole rows of ``fields.schema``.
        fields: Of the model's form.

    Raises:
        JobError: code ``answer-refused``; names the field and the rule, no value.
    """
    schema = fields.schema
    table = np.frombuffer(rows, dtype=np.uint8).reshape(-1, schema.row_bytes)
    for field, offset in zip(schema.fields, schema.offsets, strict=True):
        if field.name in fields.digits:
            column = table[:, offset : offset + field.size_bytes]
            numbers = column.view(numpy_dtype(field))
            np.round(numbers, fields.digits[field.name], out=numbers)
    try:
        demand_rows(rows, schema)
    except MalformedError as error:
        raise JobError(
            "the model's answer does not fit its form",
            why=f"{error.field}: {error.why}",
            code="answer-refused",
        ) from None
    return rows
