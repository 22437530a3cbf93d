"""The TOML that people write, turned into the agreement that is signed.

The TOML names cards (``*.card.json`` of parties, ``*.resource.json`` of sealed tables),
a code folder and the signed predecessor by path, relative to itself. The agreement
contains their content, so it needs no other file. An unknown or missing field is an error
that names its path; only fields marked below may be left out. Times are RFC 3339 text, or
TOML's own.
Source: spec/release.md section Document.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from sealift.attest.level import Level
from sealift.attest.reference import (
    ImaReferences,
    NvidiaReferences,
    SnpReferences,
    TdxReferences,
    TpmReferences,
)
from sealift.codec import from_plain, parse_toml, to_plain
from sealift.crypto.identity import load_card
from sealift.errors import MalformedError
from sealift.ids import Digest
from sealift.release.agreement import (
    About,
    Agreement,
    Board,
    CodeBundle,
    GroupRule,
    OutputRule,
    Party,
    PartyRole,
    PrivacyBudget,
    References,
    ReleaseRule,
    Resource,
    ServersRule,
    TrainingRule,
    TravelRule,
)
from sealift.release.agreement.code import measure_assets, measure_bundle, read_bundle
from sealift.release.agreement.signed import SignedAgreement, load_signed
from sealift.release.agreement.successors import require_follows
from sealift.release.agreement.written import read_training
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
    rule: ReleaseRule | None


@dataclass(frozen=True, slots=True)
class _Code:
    bundle: str
    entry: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document:
    name: str
    number: int
    predecessor: str | None
    about: About
    accept: tuple[Level, ...]
    model_owner: str | None
    operator: str
    parties: tuple[_PartyEntry, ...]
    resources: tuple[_ResourceEntry, ...]
    code: _Code
    references: References
    output: OutputRule | None
    travel: TravelRule | None
    training: TrainingRule | None
    group: GroupRule | None
    servers: ServersRule | None
    board: Board | None
    not_before: int | None
    not_after: int | None
    rehearse: Level | None


def compile_document(path: Path, read_resource: ReadResource) -> SignedAgreement:
    """The unsigned agreement of a TOML file and the files that it names.

    Args:
        path: The TOML file.
        read_resource: Reads a resource card.

    Raises:
        UnavailableError: if the file, a card, the code or the predecessor cannot be
            read.
        MalformedError: with the path of the first field that is wrong.
        StaleError: ``agreement-line``, if it does not follow its predecessor.
    """
    document = _parse(path)
    if document.predecessor is None:
        return SignedAgreement(_assemble(document, path.parent, None, read_resource))
    before = load_signed(path.parent / document.predecessor)
    previous = before.agreement
    agreement = _assemble(document, path.parent, previous.digest, read_resource)
    require_follows(agreement, previous)
    return SignedAgreement(agreement, before=before.line)


def _assemble(
    document: _Document,
    folder: Path,
    predecessor: Digest | None,
    read_resource: ReadResource,
) -> Agreement:
    code = document.code
    written = {each.name: getattr(document, each.name) for each in fields(document)}
    read = {
        "predecessor": predecessor,
        "parties": tuple(_party(folder, entry) for entry in document.parties),
        "code": _measure(folder / code.bundle, code.entry),
        "resources": tuple(
            _resource(folder, entry, read_resource) for entry in document.resources
        ),
    }
    return Agreement(**{**written, **read})


def _parse(path: Path) -> _Document:
    plain = parse_toml(read_whole(path, MAX_DOCUMENT_BYTES), source=str(path))
    try:
        _fill_in(plain)
        document: _Document = from_plain(_Document, plain)
    except MalformedError as error:
        raise MalformedError(
            f"{path} is not an agreement: {error.what}",
            why=error.why,
            field=error.field,
            fix=error.fix,
            code="bad-agreement",
        ) from None
    return document


_MAY_BE_LEFT_OUT: Final = (
    "predecessor", "model_owner", "output", "travel", "training", "group", "servers", "board", "not_before",
    "not_after", "rehearse",
)  # fmt: skip
_KINDS: Final[dict[str, type[Any]]] = {
    "tpm": TpmReferences,
    "tdx": TdxReferences,
    "snp": SnpReferences,
    "nvidia": NvidiaReferences,
}
_WINDOW: Final = ("not_before", "not_after")


def _fill_in(plain: dict[str, Any]) -> None:
    """What may be left out, in its plain form, and times in seconds; in place."""
    for name in _MAY_BE_LEFT_OUT:
        plain.setdefault(name, None)
    _read_times(plain, "")
    _fill_references(plain.get("references"))
    _fill_defaults(OutputRule, plain.get("output"), only=("model_to", "approved_by"))
    plain["training"] = read_training(plain["training"])
    if isinstance(plain["board"], dict):
        _fill_defaults(Board, plain["board"])
    entries = plain.setdefault("resources", [])
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        if isinstance(entry, dict) and isinstance(entry.setdefault("rule", None), dict):
            _fill_defaults(ReleaseRule, entry["rule"])
            _fill_defaults(PrivacyBudget, entry["rule"]["privacy"])
            _read_times(entry["rule"], f"resources[{index}].rule.")


def _fill_references(plain: object) -> None:
    """Tables by kind, of which only what has no default must be written."""
    _fill_defaults(References, plain)
    if isinstance(plain, dict):
        for name, kind in _KINDS.items():
            _fill_defaults(kind, plain.get(name))
        host = plain.get("tpm")
        _fill_defaults(ImaReferences, host.get("ima") if isinstance(host, dict) else 0)


def _fill_defaults(kind: type[Any], plain: object, only: tuple[str, ...] = ()) -> None:
    if not isinstance(plain, dict):
        return
    for each in fields(kind):
        if each.default is not MISSING and (not only or each.name in only):
            plain.setdefault(each.name, to_plain(each.default))


def _read_times(plain: dict[str, Any], path: str) -> None:
    for name in _WINDOW:
        if plain.get(name) is not None:
            plain[name] = _seconds(plain[name], f"{path}{name}")


def _seconds(value: object, field: str) -> int:
    """Seconds since 1970 of RFC 3339 text with its offset, or of a TOML date-time."""
    try:
        at = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        at = None
    if not isinstance(at, datetime) or at.tzinfo is None or at.microsecond:
        raise MalformedError(
            "a time must have its offset and whole seconds",
            fix='Write it like "2027-01-31T12:00:00Z"',
            field=field,
        )
    return int(at.timestamp())


def _party(folder: Path, entry: _PartyEntry) -> Party:
    path = folder / entry.card
    try:
        card = load_card(path)
    except MalformedError as error:
        raise MalformedError(
            f"{path} is not the card of a party",
            why=error,
            field=error.field,
            offset=error.offset,
            code="bad-card",
        ) from None
    return Party(card.name, entry.roles, card.sign, card.hpke)


def _resource(
    folder: Path, entry: _ResourceEntry, read_resource: ReadResource
) -> Resource:
    """The card's resource; a rule in the document takes the place of the card's."""
    resource = read_resource(folder / entry.card)
    return replace(resource, rule=entry.rule) if entry.rule else resource


def _measure(folder: Path, entry: str) -> CodeBundle:
    return measure_bundle(read_bundle(folder), entry, measure_assets(folder))
