"""Evidence of real Azure guests: the right verdict, for the right reason.

What is changed and refused: every byte of quote and signature, a sample of the
paravisor's report, every register; a table of the bytes that nothing covers.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random  # noqa: TID251 - which bits a test changes

import pytest

from sealift.attest.azure.evidence import parse_claims, parse_hcl
from sealift.attest.collateral import INTEL_SGX_ROOTS, Collateral
from sealift.attest.tdx.evidence import TdReport
from sealift.attest.tdx.evidence import parse_quote as parse_td_quote
from sealift.attest.tpm.evidence import (
    parse_quote,
    parse_signature,
    verify_values,
)
from sealift.attest.verifier import require_passed
from sealift.crypto.certificate import certificates_from_pem
from sealift.crypto.chain import verify_chain
from sealift.errors import EvidenceError, MalformedError, SealiftError
from tests.sim import tdx_vectors
from tests.sim.azure_vectors import (
    AT_S,
    GENOA,
    MILAN,
    SNP_VECTORS,
    TDX,
    body_of,
    examine,
    references_of,
)
from tests.sim.vectors import vector

pytestmark = pytest.mark.vectors

SAMPLE = 300
# Of the HCL report: version, request type, status, reserved; version of the second part.
UNCOVERED = {4, *range(12, 32), *range(1220, 1224)}


@pytest.mark.parametrize(
    ("name", "chip", "machine"),
    [
        (MILAN, "66a5a7b4403a3006", "26F8BC30-774E-4290-8E7A-535F3B672AEE"),
        (GENOA, "0506ffba875e939c", "390CBCF5-6C67-4D9B-98EF-C3F1699CC8FC"),
    ],
)
def test_guests_over_snp(name: str, chip: str, machine: str) -> None:
    claims = examine(name)
    require_passed(claims.checks)
    assert claims.attester.startswith(f"snp-chip:{chip}")
    assert f"virtual machine {machine}" in claims.notes
    assert claims.measurements["pcr4"] == body_of(name).pcrs["sha256"]["4"]
    assert (claims.trust.hardware, claims.trust.executables) == (2, 2)


@pytest.mark.parametrize("name", SNP_VECTORS)
def test_what_references_refuse(name: str) -> None:
    body = body_of(name)
    for changes, code in (
        ({"pcrs": {}}, "tpm-pcr"),
        ({"pcrs": {"7": (bytes(32),)}}, "tpm-pcr"),
    ):
        claims = examine(name, references=references_of(body, **changes))
        assert code in {each.code for each in claims.checks}
    unbound = examine(name, bound=bytes(32))
    assert {each.code for each in unbound.checks} == {"", "evidence-unbound"}


def test_a_guest_over_tdx_is_not_judged_without_intels_lists() -> None:
    with pytest.raises(EvidenceError) as caught:
        examine(TDX)
    assert caught.value.code == "collateral-missing"


def test_a_guest_over_tdx_is_not_judged_by_lists_of_another_platform() -> None:
    """No public collateral is of this platform (FMSPC 00806f050000)."""
    items = tdx_vectors.collateral_of(tdx_vectors.V4).items
    with pytest.raises(EvidenceError) as caught:
        examine(TDX, collateral=Collateral(as_of_s=AT_S, items=items))
    assert caught.value.code in {"collateral-foreign", "crl-expired"}


def test_links_of_the_guest_over_tdx() -> None:
    """What of it can be verified without lists: all but the platform's state."""
    body = body_of(TDX)
    assert body.hcl_report == vector("azvtpm/az-tdx-vtpm_hcl-report.bin")
    assert body.td_quote == vector("azvtpm/az-tdx-vtpm_td-quote.bin")
    hcl, td_quote = parse_hcl(body.hcl_report), parse_td_quote(body.td_quote)
    leaf, *others = certificates_from_pem(td_quote.chain)
    verify_chain(leaf, others, tuple(INTEL_SGX_ROOTS.values()), at_s=AT_S)
    assert isinstance(td_quote.body, TdReport)
    assert td_quote.body.report_data == hcl.digest.ljust(64, b"\0")
    quote = parse_quote(body.quote)
    claims = parse_claims(hcl.claims)
    parse_signature(body.signature).verify(claims.attestation_key, quote.raw)
    verify_values(quote, body.registers(), "sha256")
    assert quote.extra == b"challenge"


@pytest.mark.parametrize("part", ["quote", "signature"])
def test_every_byte_of_the_quote_is_covered(part: str) -> None:
    body = body_of(MILAN)
    chance = Random(part)
    for at in range(len(getattr(body, part))):
        raw = flipped(getattr(body, part), at, chance)
        with pytest.raises((EvidenceError, MalformedError)):
            examine(body=replace(body, **{part: raw}))


def test_every_register_is_covered() -> None:
    body = body_of(MILAN)
    for number, value in body.pcrs["sha256"].items():
        changed = {**body.pcrs["sha256"], number: flipped(value, 31, Random(number))}
        with pytest.raises(EvidenceError) as caught:
            examine(body=replace(body, pcrs={"sha256": changed}))
        assert caught.value.code == "tpm-pcr-digest"


def test_bytes_of_the_paravisors_report() -> None:
    body, claims = body_of(MILAN), examine(MILAN)
    chance = Random("hcl")
    sampled = set(chance.sample(range(len(body.hcl_report)), SAMPLE))
    for at in sorted(sampled - UNCOVERED):
        raw = flipped(body.hcl_report, at, chance)
        with pytest.raises((EvidenceError, MalformedError)):
            examine(body=replace(body, hcl_report=raw))
    for at in sorted(UNCOVERED):
        raw = flipped(body.hcl_report, at, chance)
        try:
            assert examine(body=replace(body, hcl_report=raw)) == claims
        except MalformedError:
            assert at == 4, "only the version may be refused"


def test_parts_of_two_guests_do_not_fit() -> None:
    """A quote of one guest under another's hardware report."""
    milan, genoa = body_of(MILAN), body_of(GENOA)
    mixed = replace(
        milan, quote=genoa.quote, signature=genoa.signature, pcrs=genoa.pcrs
    )
    with pytest.raises(EvidenceError) as caught:
        examine(body=mixed)
    assert caught.value.code == "tpm-signature"
    with pytest.raises(SealiftError):
        examine(body=replace(milan, hcl_report=genoa.hcl_report))


def flipped(raw: bytes, at: int, chance: Random) -> bytes:
    changed = bytearray(raw)
    changed[at] ^= chance.randrange(1, 256)
    return bytes(changed)
