"""Collateral: by name, as of a time, never older than agreed."""

from __future__ import annotations

import pytest

from sealift.attest.collateral import (
    DAY_S,
    Collateral,
    pack_bundle,
    parse_bundle,
    require_recent,
)
from sealift.errors import EvidenceError, MalformedError, StaleError

COLLATERAL = Collateral(as_of_s=1000 * DAY_S, items={"tdx/tcb-info": b"{}"})


def test_a_bundle_survives_its_file() -> None:
    assert parse_bundle(pack_bundle(COLLATERAL)) == COLLATERAL
    with pytest.raises(MalformedError):
        parse_bundle(b"{}")


def test_what_is_missing_is_named() -> None:
    assert COLLATERAL.item("tdx/tcb-info") == b"{}"
    assert COLLATERAL.named("snp/") == {}
    with pytest.raises(EvidenceError, match="tdx/root-crl") as refusal:
        COLLATERAL.item("tdx/root-crl")
    assert refusal.value.code == "collateral-missing"


@pytest.mark.parametrize(("day", "fresh"), [(1000, 1), (1030, 1), (1031, 0), (999, 0)])
def test_age_is_limited(day: int, fresh: int) -> None:
    def ask() -> None:
        require_recent(COLLATERAL, at_s=day * DAY_S, max_age_s=30 * DAY_S)

    if fresh:
        ask()
    else:
        with pytest.raises(StaleError) as refusal:
            ask()
        assert refusal.value.code == "collateral-stale"
