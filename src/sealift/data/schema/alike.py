"""Whether tables of several owners can be learned from as one.

Rows of one batch are of one form, and a number must mean the same in all of them: fields,
dtypes, shapes, classes, categories, what an empty cell counts as, and which column each
element of a field is, where a schema names them. Bounds, descriptions and what
a column is called in its owner's file may differ, and how dates are written there: each table
is held to its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Final

from sealift.data.schema.card import schema_of
from sealift.data.schema.document import field_to_plain
from sealift.data.schema.schema import Field
from sealift.errors import MalformedError
from sealift.release.agreement import Resource

_OWN: Final = (
    "column",
    "columns",
    "description",
    "finite",
    "max",
    "min",
)  # each table's own


def demand_alike(resources: Sequence[Resource]) -> None:
    """Demand that all tables among ``resources`` can be learned from as one.

    Raises:
        MalformedError: code ``mixed-schemas``; names every difference to the first table.
    """
    tables = [each for each in resources if each.part != "model"]
    problems: list[str] = []
    for each in tables[1:]:
        if each.schema != tables[0].schema:
            pairs = zip_longest(schema_of(each).fields, schema_of(tables[0]).fields)
            found = _differences(pairs, tables[0].name)
            problems += [f"{each.name}: {line}" for line in found]
    if problems:
        raise MalformedError(
            "one model cannot be trained on these tables together",
            why=problems[0] if len(problems) == 1 else f"{len(problems)} differences",
            code="mixed-schemas",
            problems=tuple(problems) if len(problems) > 1 else (),
        )


def _differences(
    pairs: Iterator[tuple[Field | None, Field | None]], other: str
) -> Iterator[str]:
    for mine, theirs in pairs:
        if mine is None or theirs is None or mine.name != theirs.name:
            words = [each.name if each else "no field" for each in (mine, theirs)]
            yield f"{words[0]} where {other} has {words[1]}"
            return  # what follows is shifted
        had, has = _meaning(theirs), _meaning(mine)
        for key in sorted(had.keys() | has.keys()):
            if has.get(key) == had.get(key):
                continue
            if key == "columns_digest":
                yield (
                    f"{mine.name}: its schema has other columns than that of {other}, or "
                    "in another order"
                )
            else:
                here, there = _words(has.get(key)), _words(had.get(key))
                yield f"{mine.name}: {key} is {here}, in {other} {there}"


def _meaning(field: Field) -> dict[str, object]:
    """What must be the same."""
    plain = field_to_plain(replace(field, cells=field.cells.agreed))
    return {key: plain[key] for key in plain if key not in _OWN}


def _words(value: object) -> str:
    return "not said" if value is None else json.dumps(value, ensure_ascii=False)
