"""Every TDX and SGX vector gets its verdict, for its reason; so does every change."""

from __future__ import annotations

import secrets

import pytest

from sealift.attest.check import require_passed
from sealift.attest.formats.sgxquote import parse_quote
from sealift.attest.level import Level, Tier
from sealift.attest.verifier import Claims
from sealift.attest.verifiers.intelquote import verify_quote
from sealift.errors import EvidenceError, PolicyError
from tests.sim.tdx_vectors import (
    AT_S,
    OUTDATED,
    SGX,
    V4,
    collateral_of,
    examine,
    td_report,
)
from tests.sim.vectors import vector

pytestmark = pytest.mark.vectors


def failed(claims: Claims) -> set[str]:
    return {each.code for each in claims.checks if not each.passed}


def refused(code: str, **kwargs: object) -> None:
    with pytest.raises(EvidenceError) as caught:
        examine(**kwargs)  # type: ignore[arg-type]
    assert caught.value.code == code


def test_up_to_date_platform_is_affirming() -> None:
    claims = examine(V4)
    require_passed(claims.checks)
    assert claims.level is Level.TEE
    assert claims.trust.tier is Tier.AFFIRMING
    assert "platform TCB UpToDate" in claims.notes
    assert claims.measurements["mrtd"] == td_report(vector(V4)).mrtd


def test_platform_of_no_level_is_refused() -> None:
    claims = examine(OUTDATED)
    assert failed(claims) == {"tcb-status"}
    assert claims.trust.hardware == 97
    with pytest.raises(PolicyError, match="TCB status"):
        require_passed(claims.checks)


def test_sgx_quote_has_its_status_and_advisories() -> None:
    quote = parse_quote(vector(SGX))
    verdict = verify_quote(quote, collateral_of(SGX), at_s=AT_S[SGX])
    assert verdict.status == "ConfigurationAndSWHardeningNeeded"
    assert verdict.advisories == ("INTEL-SA-00289", "INTEL-SA-00615")
    refused("quote-not-tdx", quote=vector(SGX))


def test_unbound_is_refused() -> None:
    assert failed(examine(bound=secrets.token_bytes(64))) == {"evidence-unbound"}
