"""Equip an agreement: what one process judges evidence with, beside the document.

Reference sets that the agreement names must be there, signed as it says, and not older
than what was used before. Whose word ties attestation keys to TPMs is the agreement's
to say; an owner's own processes believe their own broker only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from sealift.attest.collateral import MAX_BUNDLE_BYTES, Collateral, parse_bundle
from sealift.attest.reference import (
    MAX_SET_BYTES,
    ReferenceValues,
    SetName,
    SignedReferenceSet,
    join,
    parse_set,
    verify_set,
)
from sealift.crypto.sign import PublicKey
from sealift.errors import StaleError, UnavailableError
from sealift.release.agreement.signed import Equipment, VerifiedAgreement
from sealift.release.files import read_whole
from sealift.release.vault.ledger import Ledger

_COLLATERAL: Final = "collateral"


def equip(
    verified: VerifiedAgreement,
    *,
    clock: Callable[[], float],
    collateral: Collateral | None = None,
    sets: Iterable[SignedReferenceSet] = (),
    ledger: Ledger | None = None,
    enroller: PublicKey | None = None,
) -> VerifiedAgreement:
    """The agreement, ready to judge evidence.

    Args:
        verified: The agreement.
        clock: Seconds since 1970.
        collateral: Of this side (rule H13).
        sets: Files of reference values; those that nobody names are left out.
        ledger: Remembers the highest numbers of sets, and the newest collateral, that
            this side ever used; None remembers nothing.
        enroller: The only key whose enrolments this process believes, of those that the
            agreement names; None believes all of them.

    Raises:
        UnavailableError: ``references-absent``: a set that the agreement names.
        EvidenceError, StaleError: as ``verify_set``; ``collateral-rolled-back``.
    """
    values, found = verified.agreement.reference_values(), tuple(sets)
    for wanted in verified.agreement.references.sets:
        signed = _find(found, wanted)
        values = join(values, _verify_newest(signed, wanted, ledger))
    endorsed = collateral or Collateral()
    if ledger is not None:
        _require_newest(endorsed, ledger)
    values = _with_enroller(values, enroller)
    return verified.equipped(
        Equipment(collateral=endorsed, clock=clock, references=values)
    )


def equip_from_files(
    verified: VerifiedAgreement,
    *,
    clock: Callable[[], float],
    collateral: Path | None,
    references: Iterable[Path],
    ledger: Ledger | None = None,
    enroller: PublicKey | None = None,
) -> VerifiedAgreement:
    """``equip``, with a bundle and sets of files.

    Raises:
        UnavailableError: ``references-absent``, or a file that cannot be read.
        MalformedError: for something else in it.
        EvidenceError, StaleError: as ``equip``.
    """
    return equip(
        verified,
        clock=clock,
        collateral=load_collateral(collateral),
        sets=[parse_set(read_whole(path, MAX_SET_BYTES)) for path in references],
        ledger=ledger,
        enroller=enroller,
    )


def load_collateral(path: Path | None) -> Collateral:
    """The bundle of a file; nothing without one."""
    if path is None:
        return Collateral()
    return parse_bundle(read_whole(path, 2 * MAX_BUNDLE_BYTES))


def _verify_newest(
    signed: SignedReferenceSet, wanted: SetName, ledger: Ledger | None
) -> ReferenceValues:
    memory = f"reference set/{wanted.name}/{wanted.signer}"
    seen = ledger.remembered(memory) if ledger is not None else 0
    found = verify_set(signed, wanted, seen=seen)
    if ledger is not None:
        ledger.remember(memory, found.number)
    return found.values


def _require_newest(collateral: Collateral, ledger: Ledger) -> None:
    """No collateral is older than one that was used before (rule H13)."""
    if not collateral.items:
        return
    if collateral.as_of_s < ledger.remembered(_COLLATERAL):
        raise StaleError(
            "the collateral is older than collateral that was used before",
            why="older collateral may hide that hardware was revoked since then",
            code="collateral-rolled-back",
        )
    ledger.remember(_COLLATERAL, collateral.as_of_s)


def _find(found: tuple[SignedReferenceSet, ...], wanted: SetName) -> SignedReferenceSet:
    for signed in found:
        if (signed.set.name, signed.signer) == (wanted.name, wanted.signer):
            return signed
    raise UnavailableError(
        f"the reference set {wanted.name} is missing",
        why="the agreement names it, and no evidence can be checked without it",
        code="references-absent",
    )


def _with_enroller(
    values: ReferenceValues, enroller: PublicKey | None
) -> ReferenceValues:
    if enroller is None:
        return values
    kept = tuple(key for key in values.enrollers if key == enroller)
    return replace(values, enrollers=kept)
