"""What evidence is judged with: sets that are named, and nothing older than before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sealift.attest.collateral import Collateral
from sealift.attest.reference import (
    ReferenceSet,
    ReferenceValues,
    SetName,
    SignedReferenceSet,
    SnpReferences,
    sign_set,
)
from sealift.crypto.sign import SigningKey
from sealift.errors import SealiftError
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.equip import equip
from sealift.release.vault.ledger import Ledger
from tests.sim.memory_ledger import MemoryLedger
from tests.worlds.consortium import make_consortium

SIGNER = SigningKey.generate()
SNP = SnpReferences(measurement=(b"m" * 48,), host_data=(), min_tcb={})


def numbered(number: int) -> SignedReferenceSet:
    values = ReferenceSet(
        name="hosts", number=number, made_at_s=1, values=ReferenceValues(snp=SNP)
    )
    return sign_set(values, SIGNER)


@pytest.fixture(scope="module")
def agreement() -> VerifiedAgreement:
    consortium = make_consortium()
    wanted = SetName(name="hosts", signer=SIGNER.public_key, number=2)
    references = replace(consortium.agreement.references, sets=(wanted,))
    named = replace(consortium.agreement, references=references)
    return replace(consortium, agreement=named).verified()


def attempt(
    agreement: VerifiedAgreement,
    *sets: SignedReferenceSet,
    as_of_s: int = 0,
    ledger: Ledger | None = None,
) -> str:
    """``equipped``, or why not."""
    items = {"tdx/root-crl": b"list"} if as_of_s else {}
    collateral = Collateral(as_of_s=as_of_s, items=items)
    try:
        found = equip(
            agreement,
            clock=lambda: 0.0,
            collateral=collateral,
            sets=sets,
            ledger=ledger,
        )
    except SealiftError as error:
        return error.code
    assert found.appraiser().references.snp == SNP
    return "equipped"


def test_a_set_that_is_named_must_be_there(agreement: VerifiedAgreement) -> None:
    assert attempt(agreement) == "references-absent"
    assert attempt(agreement, numbered(2)) == "equipped"
    assert attempt(agreement, numbered(1)) == "references-rolled-back"


def test_numbers_are_remembered(agreement: VerifiedAgreement) -> None:
    ledger = MemoryLedger()
    assert attempt(agreement, numbered(5), ledger=ledger) == "equipped"
    assert attempt(agreement, numbered(4), ledger=ledger) == "references-rolled-back"
    assert attempt(agreement, numbered(4)) == "equipped"  # control: without memory
    assert attempt(agreement, numbered(6), ledger=ledger) == "equipped"


def test_collateral_never_goes_back(agreement: VerifiedAgreement) -> None:
    ledger, current = MemoryLedger(), numbered(2)
    assert attempt(agreement, current, as_of_s=100, ledger=ledger) == "equipped"
    older = attempt(agreement, current, as_of_s=99, ledger=ledger)
    assert older == "collateral-rolled-back"
    assert attempt(agreement, current, as_of_s=99) == "equipped"  # control
    assert attempt(agreement, current, as_of_s=101, ledger=ledger) == "equipped"
    assert attempt(agreement, current, ledger=ledger) == "equipped"  # none at all
