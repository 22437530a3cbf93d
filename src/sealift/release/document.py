"""The TOML that people write, turned into the agreement that is signed.

The TOML names cards (``*.card.json`` of parties, ``*.resource.json`` of sealed tables)
and a code folder by path, relative to itself; the agreement holds what is in them, so
it stands alone. Strict: an unknown or missing field is an error that names its path.
Source: spec/release.md section Document.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sealift.attest.level import Level
from sealift.codec import from_plain
from sealift.crypto.identity import load_card
from sealift.errors import MalformedError
from sealift.ids import Digest
from sealift.release.agreement import (
    Agreement,
    OutputRule,
    Party,
    PartyRole,
    References,
    Resource,
    TravelRule,
)
from sealift.release.bundle import measure_bundle, read_bundle
from sealift.release.files import read_whole

MAX_DOCUMENT_BYTES: Final = 1 << 20
# How a resource card is read; the card belongs to the room that seals tables.
ReadResource = Callable[[Path], Resource]


@dataclass(frozen=True, slots=True)
class _PartyEntry:
    card: str
    roles: tuple[PartyRole, ...]


@dataclass(frozen=True, slots=True)
class _ResourceEntry:
    card: str


@dataclass(frozen=True, slots=True)
class _Code:
    bundle: str
    entry: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document:
    name: str
    number: int
    predecessor: Digest | None
    accept: tuple[Level, ...]
    model_owner: str
    operator: str
    parties: tuple[_PartyEntry, ...]
    resources: tuple[_ResourceEntry, ...]
    code: _Code
    references: References
    output: OutputRule
    travel: TravelRule


def compile_document(path: Path, read_resource: ReadResource) -> Agreement:
    """The agreement that a TOML file and what it names amount to.

    Args:
        path: The TOML file.
        read_resource: Reads a resource card.

    Raises:
        UnavailableError: if the file, a card or the code cannot be read.
        MalformedError: with the path of the first field that is wrong.
    """
    document = _parse(path)
    folder = path.parent
    code = document.code
    return Agreement(
        name=document.name,
        number=document.number,
        predecessor=document.predecessor,
        parties=tuple(_party(folder, entry) for entry in document.parties),
        code=measure_bundle(read_bundle(folder / code.bundle), code.entry),
        accept=document.accept,
        references=document.references,
        resources=tuple(
            read_resource(folder / entry.card) for entry in document.resources
        ),
        model_owner=document.model_owner,
        operator=document.operator,
        output=document.output,
        travel=document.travel,
    )


def _parse(path: Path) -> _Document:
    plain = _load(path)
    plain.setdefault("predecessor", None)
    try:
        document: _Document = from_plain(_Document, plain)
    except MalformedError as error:
        raise MalformedError(
            f"{path} is not an agreement: {error.what}",
            why=error.why,
            fix=error.fix
            or "Correct the field; `sealift agreement new` writes them all",
            field=error.field,
            code="bad-agreement",
        ) from None
    return document


def _load(path: Path) -> dict[str, Any]:
    raw = read_whole(path, MAX_DOCUMENT_BYTES)
    try:
        return tomllib.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # also of too long an integer
        raise MalformedError(
            f"{path} is not TOML", why=str(error), code="bad-toml"
        ) from None


def _party(folder: Path, entry: _PartyEntry) -> Party:
    path = folder / entry.card
    try:
        card = load_card(path)
    except MalformedError as error:
        raise MalformedError(
            f"{path} is not a party's card",
            why=error.what,
            field=error.field,
            offset=error.offset,
            fix="It is the file that `sealift key new` wrote beside the identity",
            code="bad-card",
        ) from None
    return Party(card.name, entry.roles, card.sign, card.hpke)
