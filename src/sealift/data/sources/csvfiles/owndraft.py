"""A ``table.toml`` drafted from the file that it is about; nothing in it is in force."""

from __future__ import annotations

import json
from collections.abc import Iterator
from difflib import get_close_matches

from sealift.data.schema.owntable import own_keys_as_comments
from sealift.data.schema.schema import Schema
from sealift.data.sources.csvfiles.draft import draft_from_texts
from sealift.data.sources.csvfiles.reader import column_names
from sealift.data.sources.csvfiles.structure import Structure
from sealift.data.sources.source import field_name
from sealift.errors import MalformedError, visible

_SHOWN: int = 200


def draft_own_table(structure: Structure, schema: Schema | None) -> str:
    """The document; every key in it is a comment, until its owner takes the # away.

    Args:
        structure: Of the file.
        schema: What the host declares, where that is known.
    """
    lines = [
        "How this file is written. No other party sees this, and nothing of it is in an agreement.",
        "A line counts once you take its # away. What was read without it:",
        f"{structure.path.name}: {structure.words}, {structure.rows:,} rows",
        f"columns: {', '.join(structure.header[:_SHOWN])}",
    ]
    units: tuple[str, ...] = ()
    try:
        draft = draft_from_texts([structure])
        units = draft.units
        lines += draft.notes[1:]
    except MalformedError as error:
        lines += [*error.problems, str(error)]
    text = "".join(f"# {visible(line)}\n" for line in lines)
    settings = own_keys_as_comments(
        encoding=structure.encoding, delimiter=structure.delimiter, units=units
    )
    return "\n".join([text, settings, *_columns(structure, schema)])


def _columns(structure: Structure, schema: Schema | None) -> Iterator[str]:
    """What the host's columns may be called here, and which columns it has no field for."""
    if schema is None:
        yield '# [columns]  # names of the host\'s fields, and of your columns\n# age = "Alter"\n'
        return
    header = structure.header
    free, missing = set(header), []
    for spec in schema.fields:
        names = column_names(spec, header)
        free -= set(names)
        missing += [spec] if not set(names) <= set(header) and names else []
    by_name = {field_name(name, set()): name for name in header if name in free}
    yield "# [columns]  # names of the host's fields, and of your columns"
    for spec in missing:
        near = get_close_matches(spec.name, by_name, n=1, cutoff=0.5)
        yield f"# {spec.name} = {_quoted(by_name[near[0]] if near else '?')}"
        free -= {by_name[near[0]]} if near else set()
    unused = ", ".join(_quoted(name) for name in header if name in free)
    yield f"\n# Columns of yours for which the host has no field; this line belongs above [columns]:\n# leave_out = [{unused}]\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
