"""Signed reference sets: whose they are, that they never go back, how they join."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sealift import codec
from sealift.attest.reference import (
    ReferenceSet,
    ReferenceValues,
    SetName,
    SignedReferenceSet,
    SnpReferences,
    TdxReferences,
    join,
    parse_set,
    sign_set,
    verify_set,
)
from sealift.crypto.sign import SigningKey
from sealift.errors import EvidenceError, MalformedError, StaleError

TDX = TdxReferences(
    mrtd=(b"m" * 48,), rtmr={"0": (b"0" * 48,)}, mrconfigid=(bytes(48),)
)
VALUES = ReferenceValues(tdx=TDX)


@pytest.fixture
def signer() -> SigningKey:
    return SigningKey.generate()


def signed(
    signer: SigningKey, number: int = 3, name: str = "hosts"
) -> SignedReferenceSet:
    values = ReferenceSet(name=name, number=number, made_at_s=1, values=VALUES)
    return sign_set(values, signer)


def wanted(signer: SigningKey, number: int = 2) -> SetName:
    return SetName(name="hosts", signer=signer.public_key, number=number)


def test_a_set_survives_its_file(signer: SigningKey) -> None:
    found = parse_set(codec.encode(signed(signer)))
    assert verify_set(found, wanted(signer)).values == VALUES


def test_foreign_sets_are_refused(signer: SigningKey) -> None:
    genuine = signed(signer)
    altered = replace(genuine, set=replace(genuine.set, number=9))
    for foreign in (
        signed(SigningKey.generate()),
        signed(signer, name="other"),
        altered,
    ):
        with pytest.raises(EvidenceError) as refusal:
            verify_set(foreign, wanted(signer))
        assert refusal.value.code == "references-foreign"


def test_a_set_never_goes_back(signer: SigningKey) -> None:
    assert verify_set(signed(signer, 5), wanted(signer), seen=5)
    for number, seen in ((1, 0), (4, 5)):
        with pytest.raises(StaleError) as refusal:
            verify_set(signed(signer, number), wanted(signer), seen=seen)
        assert refusal.value.code == "references-rolled-back"


def test_a_set_names_no_keys_of_parties(signer: SigningKey) -> None:
    for field in ("development_attesters", "enrollers"):
        values = replace(VALUES, **{field: (signer.public_key,)})
        with pytest.raises(MalformedError):
            ReferenceSet(name="hosts", number=1, made_at_s=1, values=values)


def test_joining_unites_lists_and_demands_equal_values() -> None:
    other = replace(TDX, mrtd=(b"n" * 48, b"m" * 48), rtmr={"1": (b"1" * 48,)})
    united = join(VALUES, ReferenceValues(tdx=other, collateral_max_age_s=5))
    assert united.tdx is not None
    assert united.tdx.mrtd == (b"m" * 48, b"n" * 48)
    assert united.tdx.rtmr == {"0": (b"0" * 48,), "1": (b"1" * 48,)}
    assert united.collateral_max_age_s == 5
    strict, loose = VALUES, ReferenceValues(tdx=TDX, lowest_tier="warning")
    assert join(strict, loose).lowest_tier == "affirming", "no set loosens it"
    looser = replace(TDX, min_tcb_evaluation=1)
    with pytest.raises(MalformedError) as refusal:
        join(VALUES, ReferenceValues(tdx=looser))
    assert refusal.value.code == "references-conflict"
    assert "min_tcb_evaluation" in str(refusal.value)


def test_joining_kinds_keeps_both() -> None:
    snp = SnpReferences(measurement=(), host_data=(), min_tcb={})
    united = join(VALUES, ReferenceValues(snp=snp))
    assert (united.tdx, united.snp) == (TDX, snp)
