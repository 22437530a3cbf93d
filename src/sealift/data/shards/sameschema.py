"""Whether two schemas read rows alike, and whether a sealed table is of a schema.

A sealed table commits to its columns under its data key: nobody who only writes to the
folder can give them other names or another order. Files that were sealed before they did,
and tables that were sealed by ``channel`` alone, say nothing and are not compared.
Source: spec/table.md.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from sealift.channel.header import StreamHeader
from sealift.channel.record import verify_description
from sealift.data.schema.schema import Schema
from sealift.data.shards.shard import Shard
from sealift.errors import AuthenticationError, MalformedError, SealiftError


def demand_sealed_as(
    schema: Schema,
    said_by: str,
    shard: Shard,
    header: StreamHeader,
    other: Callable[[], Schema | None] = lambda: None,
) -> None:
    """Demand that a shard was sealed with the columns of ``schema``.

    Args:
        schema: What its rows are said to be.
        said_by: By what, for the error.
        shard: Where it lies, and its key.
        header: Of the file, which the key was verified for.
        other: Another schema that may be said of it, to name the field that differs.

    Raises:
        MalformedError: ``schema-mismatch``.
    """
    if not header.is_described or _is_sealed_as(schema, shard, header):
        return
    known = None
    with suppress(SealiftError):  # it is only to say more
        known = other()
    if known is not None and _is_sealed_as(known, shard, header):
        check_same(known, schema, name=shard.name, other=said_by)
    raise MalformedError(
        f"{shard.name} was not sealed with the columns that {said_by} says",
        why="a name, a dtype, a shape or their order is another",
        code="schema-mismatch",
    )


def _is_sealed_as(schema: Schema, shard: Shard, header: StreamHeader) -> bool:
    try:
        verify_description(shard.key, header, schema.columns)
    except AuthenticationError:
        return False
    return True


def check_same(schema: Schema, wanted: Schema, *, name: str, other: str) -> None:
    """Demand that rows of both are read alike: names, dtypes, shapes, offsets.

    Raises:
        MalformedError: names the first field that differs, and its offset.
    """
    fields = zip(wanted.fields, wanted.offsets, strict=True)
    for index, (field, offset) in enumerate(fields):
        there = schema.fields[index] if index < len(schema.fields) else None
        kind = (field.name, field.dtype, field.shape)
        if there is None or (there.name, there.dtype, there.shape) != kind:
            what = there and f"{there.name} {there.dtype} {list(there.shape)}"
            raise _other_schema(name, other, field.name, offset, what or "nothing")
    if len(schema.fields) > len(wanted.fields):
        extra = schema.fields[len(wanted.fields)]
        raise _other_schema(name, other, extra.name, wanted.row_bytes, "one field more")


def _other_schema(
    name: str, other: str, field: str, offset: int, found: str
) -> MalformedError:
    return MalformedError(
        f"{name} has other rows than {other}",
        field=field,
        offset=offset,
        why=f"there is {found}",
        code="schema-mismatch",
    )
