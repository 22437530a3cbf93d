"""All shards of a dataset: found, opened once, and found to hold the same kind of rows.

Guarantees: every shard was opened with its key and is whole; all have one schema, whose
columns are those that each was sealed with. With ``agreed``, each card is the resource as
it stands in the signed agreement. Who writes to the folder cannot put one genuine shard
with its card in the place of another, where keys are found by name.
Not promised without ``agreed``: bounds, classes and descriptions of a card's schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from sealift.channel.record.commitment import VerifiedLeaves
from sealift.channel.record.layout import StreamHeader
from sealift.crypto.hash import labelled
from sealift.crypto.keys import SecretKey
from sealift.data.schedule.order import Layout, ShardLayout
from sealift.data.schema.card import (
    CARD_SUFFIX,
    MAX_CARD_BYTES,
    SEALED_SUFFIX,
    ResourceCard,
    parse_card,
    schema_of,
)
from sealift.data.schema.schema import Schema
from sealift.data.shards.inspect import check_same, demand_sealed_as
from sealift.data.shards.shard import Shard, ShardReader, moved
from sealift.data.staging import demand_all_placed
from sealift.data.urls import (
    StorageOptions,
    exists,
    expand,
    name_of,
    open_place,
    read_place,
    split_query,
)
from sealift.errors import IntegrityError, MalformedError, UnavailableError, UsageError
from sealift.release.agreement import Resource

NO_OPTIONS: Final[StorageOptions] = {}


@runtime_checkable
class KeySource(Protocol):
    """Where data keys come from: ``release.vault.vault.Vault`` is one."""

    def fetch(self, resource: str) -> SecretKey:
        """The key of a resource, by its name in the agreement."""


Keys = SecretKey | Mapping[str, SecretKey] | KeySource
ShardPath = str | Path


@dataclass(frozen=True)
class ShardSet:
    """Shards that were looked into once.

    Attributes:
        shards: With the headers that they must keep.
        leaves: Per shard, its verified leaves, if it has a card.
        schema: What a row of each of them is.
        layout: Their rows, and which of them are read.
    """

    shards: tuple[Shard, ...]
    leaves: tuple[VerifiedLeaves | None, ...]
    schema: Schema
    layout: Layout

    @property
    def fingerprint(self) -> str:
        """Hex; tells these files, in this order, and rows from any others. Public."""
        headers = [shard.header for shard in self.shards]
        chosen = self.layout.chosen
        rows = [] if chosen is None else [chosen.astype("<i8").tobytes()]
        return labelled("sealift shards", *headers, *rows).hex()[:32]


@dataclass(frozen=True, kw_only=True)
class ShardOptions:
    """How shards are found and what they must be; see ``SealedDataset``."""

    schema: Schema | None = None
    card: ResourceCard | None = None
    agreed: Sequence[Resource] = ()
    relocate: Mapping[str, ShardPath] | None = None
    storage: StorageOptions | None = None


def open_shards(
    places: ShardPath | Sequence[ShardPath], keys: Keys, options: ShardOptions
) -> ShardSet:
    """Find the shards, open each once, and check that they belong together.

    Raises:
        UsageError: if there is none, or nothing says what a row is.
        UnavailableError, MalformedError, AuthenticationError, IntegrityError: as
            ``ShardReader``.
    """
    storage = options.storage or NO_OPTIONS
    found = [
        each
        for place in _listed(places)
        for each in _found(str(place), options.relocate, storage)
    ]
    if options.card is not None and len(found) != 1:
        raise UsageError("card= belongs to one shard; leave it out for several shards")
    opened = [_look_into(place, name, keys, options) for place, name in found]
    schema = _one_schema(opened)
    return ShardSet(
        tuple(each.shard for each in opened),
        tuple(each.leaves for each in opened),
        schema,
        Layout(schema.row_bytes, tuple(_rows_of(each, schema) for each in opened)),
    )


def join_shards(sets: Sequence[ShardSet]) -> ShardSet:
    """The shards of several datasets as one's, in their order.

    Raises:
        MalformedError: code ``schema-mismatch``, if their columns differ.
    """
    first, *others = sets
    for each in others:
        name, other = each.shards[0].name, first.shards[0].name
        check_same(each.schema, first.schema, name=name, other=other)
    layouts = sum((each.layout.shards for each in sets), ())
    return ShardSet(
        sum((each.shards for each in sets), ()),
        sum((each.leaves for each in sets), ()),
        first.schema,
        replace(first.layout, shards=layouts),
    )


@dataclass(frozen=True)
class _Opened:
    """What looking into one shard showed."""

    shard: Shard
    header: StreamHeader
    leaves: VerifiedLeaves | None
    schema: Schema


def _look_into(place: str, name: str, keys: Keys, options: ShardOptions) -> _Opened:
    """``name``: of the resource, as whoever asked for the shard called it."""
    storage = options.storage or NO_OPTIONS
    card = options.card or _card_beside(place, options, storage)
    if card is not None and options.card is None and not isinstance(keys, SecretKey):
        _check_asked(card, name)
    _check_agreed(card, options.agreed, name_of(place))
    schema = _schema_of(place, card, options)
    shard = Shard(place, _key_of(keys, card.name if card else name), card, storage)
    with ShardReader(shard) as reader:
        _check_columns(schema, shard, reader.header, options)
        fixed = replace(shard, header=reader.header.encode())
        return _Opened(fixed, reader.header, reader.leaves, schema)


def _card_beside(
    place: str, options: ShardOptions, storage: StorageOptions
) -> ResourceCard | None:
    """The card beside a shard, where nothing else says what its rows are."""
    if options.schema is not None and not options.agreed:
        return None
    base, query = split_query(place)
    beside = base.removesuffix(SEALED_SUFFIX) + CARD_SUFFIX + query
    if not exists(beside, storage):
        return None
    raw = read_place(beside, MAX_CARD_BYTES, storage)
    return parse_card(raw, source=name_of(beside))


def _check_asked(card: ResourceCard, name: str) -> None:
    """The card says which key is fetched: it must be the shard's that was asked for."""
    if card.name != name:
        raise IntegrityError(
            f"the file {name}{SEALED_SUFFIX} belongs to {card.name}",
            fix="Restore the right file, or rename this one",
            code="content-mismatch",
        )


def _schema_of(place: str, card: ResourceCard | None, options: ShardOptions) -> Schema:
    schema = options.schema
    if card is None and schema is None:
        _demand_there(place, options)
        raise UsageError(
            f"the schema of {name_of(place)} is unknown",
            why="there is no card beside it",
            fix="Give schema= or card=",
        )
    if card is None or schema is None:
        return schema or schema_of(card.resource)  # type: ignore[union-attr]
    check_same(card.schema, schema, name=f"the card of {card.name}", other="schema=")
    return schema


def _check_columns(
    schema: Schema, shard: Shard, header: StreamHeader, options: ShardOptions
) -> None:
    """Compare what its rows are said to be with what the sealed file itself commits to."""

    def beside() -> Schema | None:
        always = replace(options, schema=None)
        card = _card_beside(shard.place, always, shard.options)
        return None if card is None else card.schema

    said_by = "schema=" if options.schema is not None else "its card"
    demand_sealed_as(schema, said_by, shard, header, beside)


def _demand_there(place: str, options: ShardOptions) -> None:
    """Say first what is likelier: it is not only the card that is missing."""
    try:
        with closing(open_place(place, options.storage)) as source:
            source.state()
    except UnavailableError as error:
        raise moved(name_of(place), error) from error


def _one_schema(opened: Sequence[_Opened]) -> Schema:
    first, *others = opened
    for each in others:
        name, other = each.shard.name, first.shard.name
        check_same(each.schema, first.schema, name=name, other=other)
    return first.schema


def _rows_of(opened: _Opened, schema: Schema) -> ShardLayout:
    rows, rest = divmod(opened.header.total_bytes, schema.row_bytes)
    if rest or not rows:
        raise MalformedError(
            f"the rows of {opened.shard.name} do not have {schema.row_bytes:,} bytes",
            offset=rows * schema.row_bytes,
            fix="Use the schema with which it was sealed",
            code="bad-rows",
        )
    return ShardLayout(rows, opened.header.record_bytes)


def _check_agreed(
    card: ResourceCard | None, agreed: Sequence[Resource], shard: str
) -> None:
    if not agreed:
        return
    if card is None:
        raise UsageError(f"{shard} has no card to compare with the agreement")
    entry = next((entry for entry in agreed if entry.name == card.name), None)
    # Its owner's rule comes with the agreement; a card has none yet.
    if entry is None or replace(entry, rule=card.resource.rule) != card.resource:
        raise IntegrityError(
            f"the card of {card.name} differs from the resource in the agreement",
            code="content-mismatch",
        )


def _key_of(keys: Keys, name: str) -> SecretKey:
    if isinstance(keys, SecretKey):
        return keys
    if isinstance(keys, Mapping):
        if name not in keys:
            raise UnavailableError(f"there is no key for {name}", code="no-key")
        return keys[name]
    if not isinstance(keys, KeySource):
        raise UsageError(
            "keys= must be a key, keys by name, or a vault",
            fix="Use owner_keys(vault, identity, passphrase_file=...)",
        )
    return keys.fetch(name)


def _found(
    place: str, moves: Mapping[str, ShardPath] | None, storage: StorageOptions
) -> list[tuple[str, str]]:
    """Where shards are, and the names of their resources as they were asked for."""
    asked = name_of(place)
    if moves and asked in moves:
        return [(str(moves[asked]), asked.removesuffix(SEALED_SUFFIX))]
    demand_all_placed(place)  # its shards may be there in part: none would be missed
    places = expand(place, storage)
    return [(each, name_of(each).removesuffix(SEALED_SUFFIX)) for each in places]


def _listed(places: ShardPath | Sequence[ShardPath]) -> Sequence[ShardPath]:
    listed = [places] if isinstance(places, (str, Path)) else list(places)
    if not listed:
        raise UsageError("a sealed dataset must have at least one shard")
    return listed
