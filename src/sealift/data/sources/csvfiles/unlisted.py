"""Texts in a column of categories that the schema does not list, and in how many rows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.compute as pc

from sealift.data.schema.owntable import AS_IT_LOOKS, OwnTable
from sealift.data.schema.schema import Schema
from sealift.data.sources.csvfiles.cells import read_cells
from sealift.data.sources.csvfiles.cleaning import clean
from sealift.data.sources.csvfiles.reader import batches, find_places
from sealift.data.sources.csvfiles.structure import look_at
from sealift.data.sources.problems import Problems


def unlisted_texts(
    path: Path, schema: Schema, own: OwnTable = AS_IT_LOOKS
) -> dict[str, Counter[str]]:
    """By the field's name; of fields without categories, and of fitting ones, nothing.

    Raises:
        MalformedError: if it is no table of text.
    """
    structure = look_at(path, Problems(path.name), own)
    schema = own.schema_here(schema)
    places = find_places(structure.header, schema, Problems(path.name), own)
    found: dict[str, Counter[str]] = {}
    for _first, batch in batches(structure):
        for spec in schema.fields:
            for place in places[spec.name] if spec.cells.categories else ():
                cells = read_cells(clean(batch.column(place), spec, own), spec)
                texts = cells.texts.filter(cells.wrong & ~cells.empty)
                counts = pc.value_counts(texts).to_pylist()
                of = found.setdefault(spec.name, Counter())
                of.update({each["values"]: each["counts"] for each in counts})
    return {name: counts for name, counts in found.items() if counts}
