"""Attacks on agreements and on the broker's own machine: P3 and P4."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

from sealift.codec import decode, encode
from sealift.crypto.keys import SecretKey
from sealift.errors import SealiftError
from sealift.lab.attacks.office import OPERATOR, RESOURCE, Office, now_s
from sealift.lab.attacks.stage import Stage
from sealift.release.agreement import Agreement
from sealift.release.signed import SignedAgreement, VerifiedAgreement, verify
from sealift.release.stores import keep_keys, opened_broker

NOTHING_FOUND: Final = "nothing found"


def one_signature_less(stage: Stage) -> str:
    """(P3) Everybody but the owner signed."""
    signatures = {OPERATOR: stage.office.signed.signatures[OPERATOR]}
    less = replace(stage.office.signed, signatures=signatures)
    return _refusal(lambda: verify(less))


def changed_after_signing(stage: Stage) -> str:
    """(P3) One field was changed under the signatures."""
    signed = stage.office.signed
    output = replace(signed.agreement.output_rule, digits=6)
    changed = replace(signed.agreement, output=output)
    return _refusal(lambda: verify(replace(signed, agreement=changed)))


def another_form(stage: Stage) -> str:
    """(P3) The same content in other bytes."""
    raw = encode(stage.office.signed.agreement)
    spaced = raw.replace(b'"number":1', b'"number":1.0', 1)
    return _refusal(lambda: decode(Agreement, spaced))


def rolled_back(stage: Stage) -> str:
    """(P3) The broker is started with the agreement before the one in force."""
    office, first = stage.office, stage.office.agreement
    successor = replace(first.agreement, number=2, predecessor=first.digest)
    later = office.sign(SignedAgreement(successor, before=office.signed.line))
    stores = _stores(office, office.key)
    _start(office, stores, verify(later))
    return _refusal(lambda: _start(office, stores, first))


def edited_database(stage: Stage) -> str:
    """(P3) The broker's administrator puts another agreement and key into its files."""
    office = stage.office
    stores = _stores(office, SecretKey.generate())
    return _refusal(lambda: _start(office, stores, office.agreement))


def signed_by_all(stage: Stage) -> bool:
    """(P3) What everybody signed binds, and a broker serves it."""
    office = stage.office
    stores = _stores(office, office.key)
    return not _refusal(lambda: _start(office, stores, verify(office.signed)))


def search_everything(stage: Stage) -> str:
    """(P4) Search vault, log and all that crossed for the data key."""
    office = stage.office
    office.ask()
    return "" if _found(office, office.material) else NOTHING_FOUND


def search_finds(stage: Stage) -> bool:
    """(P4) The same search finds what is there: the salt and the recipient's name."""
    office = stage.office
    with closing(sqlite3.connect(office.folder / "vault.db")) as connection:
        (salt,) = connection.execute("SELECT salt FROM keys").fetchone()
    crossed = office.agreement.digest.to_text().encode()
    return _found(office, salt) and any(crossed in frame for frame in office.wire.seen)


def _found(office: Office, secret: bytes) -> bool:
    files = (path for path in office.folder.glob("*.db*") if path.is_file())
    places = (*(path.read_bytes() for path in files), *office.wire.seen)
    return any(secret in place or secret.hex().encode() in place for place in places)


def _stores(office: Office, key: SecretKey) -> tuple[Path, Path]:
    """Another vault of the same owner, with this key, and a place for its log."""
    vault = _fresh(office, "vault")
    keep_keys(vault, office.identity, {RESOURCE: key})
    return vault, _fresh(office, "audit")


def _start(
    office: Office, stores: tuple[Path, Path], verified: VerifiedAgreement
) -> None:
    """Start a broker, and end it."""
    with opened_broker(*stores, office.identity, lambda ledger: verified, clock=now_s):
        pass


def _fresh(office: Office, name: str) -> Path:
    taken = len(list(office.folder.glob(f"{name}*")))
    return office.folder / f"{name}{taken}.db"


def _refusal(step: Callable[[], object]) -> str:
    try:
        step()
    except SealiftError as error:
        return error.code
    return ""
