"""Equip an agreement: what one process judges evidence with, beside the document.

Reference sets that the agreement names must be there, signed as it says, and not older
than what was used before. Whose word ties attestation keys to TPMs is the agreement's
to say; an owner's own processes believe their own broker only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from sealift.attest.collateral import Collateral
from sealift.attest.reference import ReferenceValues
from sealift.attest.referenceset import (
    SetName,
    SignedReferenceSet,
    join,
    verify_set,
)
from sealift.crypto.sign import PublicKey
from sealift.errors import UnavailableError
from sealift.release.signed import Equipment, VerifiedAgreement


def nothing_seen(name: str) -> int:
    """For a process that remembers no numbers."""
    return 0


def equip(
    verified: VerifiedAgreement,
    *,
    clock: Callable[[], float],
    collateral: Collateral | None = None,
    sets: Iterable[SignedReferenceSet] = (),
    seen: Callable[[str], int] = nothing_seen,
    enroller: PublicKey | None = None,
) -> VerifiedAgreement:
    """The agreement, ready to judge evidence.

    Args:
        verified: The agreement.
        clock: Seconds since 1970.
        collateral: Of this side (rule H13).
        sets: Files of reference values; those that nobody names are left out.
        seen: The highest number of a set that this side ever used.
        enroller: The only key whose enrolments this process believes, of those that the
            agreement names; None believes all of them.

    Raises:
        UnavailableError: ``references-absent``: a set that the agreement names.
        EvidenceError, StaleError: as ``verify_set``.
    """
    values, found = verified.agreement.reference_values(), tuple(sets)
    for wanted in verified.agreement.references.sets:
        signed = _find(found, wanted)
        values = join(values, verify_set(signed, wanted, seen=seen(wanted.name)).values)
    values = _with_enroller(values, enroller)
    return verified.equipped(
        Equipment(collateral=collateral or Collateral(), clock=clock, references=values)
    )


def _find(found: tuple[SignedReferenceSet, ...], wanted: SetName) -> SignedReferenceSet:
    for signed in found:
        if (signed.set.name, signed.signer) == (wanted.name, wanted.signer):
            return signed
    raise UnavailableError(
        f"the reference set {wanted.name} is not here",
        why="the agreement names it, and nothing can be judged without it",
        fix="Ask its signer for the file and give it with --references",
        code="references-absent",
    )


def _with_enroller(
    values: ReferenceValues, enroller: PublicKey | None
) -> ReferenceValues:
    if enroller is None:
        return values
    kept = tuple(key for key in values.enrollers if key == enroller)
    return replace(values, enrollers=kept)
