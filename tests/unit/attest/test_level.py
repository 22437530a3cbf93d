from __future__ import annotations

import pytest

from sealift.attest.level import Level, Tier, TrustVector, parse_accept, tier_of
from sealift.errors import MalformedError


def test_accept_keeps_the_order_of_preference() -> None:
    assert parse_accept(["gpu-tee", "tee"]) == (Level.GPU_TEE, Level.TEE)


@pytest.mark.parametrize(
    ("levels", "code"),
    [
        ([], "bad-accept"),
        (["tee", "tee"], "bad-accept"),
        (["sgx"], "unknown-level"),
        (["development", "tee"], "development-not-alone"),
        (["tee", "development"], "development-not-alone"),
    ],
)
def test_accept_is_refused(levels: list[str], code: str) -> None:
    with pytest.raises(MalformedError) as refusal:
        parse_accept(levels)
    assert refusal.value.code == code


def test_development_may_stand_alone() -> None:
    assert parse_accept(["development"]) == (Level.DEVELOPMENT,)


@pytest.mark.parametrize(
    ("value", "tier"),
    [
        (0, Tier.NONE), (1, Tier.NONE), (-1, Tier.NONE),
        (2, Tier.AFFIRMING), (31, Tier.AFFIRMING),
        (-2, Tier.AFFIRMING), (-32, Tier.AFFIRMING),
        (32, Tier.WARNING), (95, Tier.WARNING),
        (-33, Tier.WARNING), (-96, Tier.WARNING),
        (96, Tier.CONTRAINDICATED), (127, Tier.CONTRAINDICATED),
        (-97, Tier.CONTRAINDICATED), (-128, Tier.CONTRAINDICATED),
    ],
)  # fmt: skip
def test_tier_ranges_are_those_of_ear(value: int, tier: Tier) -> None:
    assert tier_of(value) is tier


def test_the_worst_claim_decides() -> None:
    assert TrustVector(hardware=2, executables=3).tier is Tier.AFFIRMING
    assert TrustVector(hardware=2, executables=33).tier is Tier.WARNING
    assert TrustVector(hardware=2, runtime_opaque=96).tier is Tier.CONTRAINDICATED
    assert TrustVector().tier is Tier.NONE


def test_trust_claims_have_a_range() -> None:
    with pytest.raises(MalformedError):
        TrustVector(hardware=128)
