"""What a sealed file says about itself, without its key; and with it, whether it holds.

``inspect_file`` reads header and trailer: their words are not authenticated. With the
key, ``verify_table`` opens every record, and with the card it checks the content
against the commitment. A sealed table commits to its columns under its data key: nobody
who only writes to the folder can give them other names or another order. Files without
that (those that ``channel`` alone sealed) say nothing and are not compared.
Source: spec/table.md.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sealift.channel.record.layout import StreamHeader
from sealift.channel.record.rawfile import RawSealedFile
from sealift.channel.record.record import verify_description
from sealift.channel.record.sealedfile import SealedFileReader
from sealift.crypto.keys import SecretKey
from sealift.data.schema.card import ResourceCard
from sealift.data.schema.schema import Schema
from sealift.data.shards.shard import (
    Shard,
    ShardRefusedError,
    check_card_fits,
    leaves_of,
    wrong_key,
)
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
        f"{shard.name} was not sealed with the columns of {said_by}",
        why="a name, a dtype, a shape or their order differs",
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
        raise _other_schema(name, other, extra.name, wanted.row_bytes, "one more field")


def _other_schema(
    name: str, other: str, field: str, offset: int, found: str
) -> MalformedError:
    return MalformedError(
        f"{name} has other columns than {other}",
        field=field,
        offset=offset,
        why=f"there is {found}",
        code="schema-mismatch",
    )


@dataclass(frozen=True, slots=True)
class SealedFacts:
    """The public facts of a sealed file; ``stream_id`` is hex."""

    file: str
    suite: str
    records: int
    record_bytes: int
    total_bytes: int
    sealed_file_bytes: int
    stream_id: str
    key_epoch: int


def inspect_file(path: Path) -> SealedFacts:
    """Read the public facts; no key is needed and nothing is authenticated.

    Raises:
        UnavailableError: if the file cannot be read.
        MalformedError: if it is not a whole sealed file.
    """
    with RawSealedFile(path) as raw:
        header = raw.header
        return SealedFacts(
            file=path.name,
            suite=header.suite.name.lower().replace("_", "-"),
            records=header.record_count,
            record_bytes=header.record_bytes,
            total_bytes=header.total_bytes,
            sealed_file_bytes=raw.sealed_file_bytes,
            stream_id=header.stream_id.hex(),
            key_epoch=header.key_epoch,
        )


def verify_table(path: Path, key: SecretKey, card: ResourceCard | None = None) -> None:
    """Open every record; with a card, demand the content that it commits to.

    Raises:
        UnavailableError: if the file cannot be read.
        MalformedError: if it is not a whole sealed file, or not that of the card, or
            ``schema-mismatch``: not of the card's columns.
        AuthenticationError: if a byte was changed, or the key is another one.
        IntegrityError: if the content is not what the card committed to.
    """
    with _opened(path, key) as reader:
        header = reader.header
        shard = Shard(str(path), key, card)
        check_card_fits(header.total_bytes, header.record_bytes, shard)
        if card is not None and header.is_described:  # a model's card has no schema
            demand_sealed_as(card.schema, "its card", shard, header)
        try:
            reader.verify(leaves_of(card, key))
        except AuthenticationError as error:
            raise ShardRefusedError(
                f"{path.name} was changed",
                why="one of its records, or its end, does not verify",
                code="record-changed",
            ) from error


def _opened(path: Path, key: SecretKey) -> SealedFileReader:
    try:
        return SealedFileReader(path, key)
    except AuthenticationError as error:
        raise wrong_key(path.name) from error
