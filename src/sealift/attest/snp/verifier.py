"""Verifies SEV-SNP evidence: a genuine report, and all in it that decides (rule M7).

Source: spec/evidence-snp.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from sealift.attest.collateral import AMD_ARKS
from sealift.attest.evidence import Evidence
from sealift.attest.level import Level, TrustVector
from sealift.attest.reference import (
    AppraisalBasis,
    PlatformFact,
    SnpReferences,
    require_references,
)
from sealift.attest.snp.endorsement import SnpVerdict, verify_report
from sealift.attest.snp.evidence import (
    NO_MIGRATION_AGENT,
    TCB_FIELDS,
    SnpBody,
    SnpReport,
    parse_tcb,
)
from sealift.attest.verifier import (
    AppraisalCheck,
    Claims,
    all_but_freshness,
    check,
    check_among,
    check_bound,
    check_code_bundle,
    check_collateral_age,
)
from sealift.ids import Digest

_HOLDS: Final = "holds"
_MISSING: Final = "does not hold"


def examine_snp(
    evidence: Evidence, basis: AppraisalBasis, roots: Mapping[str, Digest] = AMD_ARKS
) -> Claims:
    """Verify the report; compare guest and chip with the references.

    Args:
        evidence: Of one guest.
        basis: What it is judged by.
        roots: AMD's root keys by product.
    """
    references = require_references(basis.references.snp, "SEV-SNP")
    body = SnpBody.parse(evidence.body)
    verdict = verify_report(body.report, body.certificates, basis, roots)
    report = verdict.report
    # Only where the agreement says so does the host's value name the code.
    named = references.host_data_names_code
    code_bundle = Digest(report.host_data) if named else None
    checks = (
        *check_guest(report, basis.bound, references),
        *check_chip(verdict, basis, references),
        check_code_bundle(code_bundle, basis.references.code_bundle),
    )
    return Claims(
        level=Level.TEE,
        attester=attester_of(verdict),
        code_bundle=code_bundle,
        trust=trust_of(verdict, references, checks),
        checks=checks,
        measurements=measurements(report),
        notes=tuple(notes_of(verdict, references)),
    )


def check_guest(
    report: SnpReport, bound: bytes | None, references: SnpReferences
) -> Iterator[AppraisalCheck]:
    """The guest: bound value, policy, privilege level, measurement."""
    yield check_bound(report.report_data, bound, "SNP report data")
    found = f"policy {report.policy.raw:#x}"
    yield check(not report.policy.debug, "SNP debug", "off", found, "snp-debug")
    alone = report.report_id_ma == NO_MIGRATION_AGENT
    yield check(
        alone and not report.policy.migration_agent,
        "SNP migration agent",
        "none, and none is allowed",
        found if alone else report.report_id_ma.hex(),
        "snp-migration-agent",
    )
    yield check(
        not report.policy.unknown,
        "SNP policy",
        "only bits that this version knows",
        found,
        "snp-policy-unknown",
    )
    yield check(
        report.vmpl <= references.max_vmpl,
        "SNP privilege level (VMPL)",
        f"at most {references.max_vmpl}",
        str(report.vmpl),
        "snp-vmpl",
    )
    launch = report.measurement
    yield check_among(
        launch, references.measurement, "SNP launch digest", code="snp-measurement"
    )


def check_chip(
    verdict: SnpVerdict, basis: AppraisalBasis, references: SnpReferences
) -> Iterator[AppraisalCheck]:
    """What the host gave, the hardware under it, and how old what is known of it is."""
    allowed = references.host_data
    if references.host_data_names_code:
        bundle = basis.references.code_bundle
        allowed = (bundle.raw,) if bundle else ()
    host_data = verdict.report.host_data
    yield check_among(host_data, allowed, "SNP HOST_DATA", code="snp-host-data")
    yield from _check_tcb(verdict, references)
    operator = verdict.endorsement.operator
    if operator:
        yield check(
            operator in references.operators,
            "SNP key of an operator (VLEK)",
            " or ".join(references.operators) or "a chip's own key (VCEK)",
            operator,
            "snp-operator",
        )
    if references.chips:
        chip = verdict.endorsement.chip_id
        yield check_among(chip, references.chips, "SNP chip", code="snp-chip")
    for fact in references.platform:
        holds = platform_facts(verdict.report)[fact]
        found = _HOLDS if holds else _MISSING
        yield check(holds, f"SNP host: {fact}", _HOLDS, found, "snp-platform")
    if verdict.revocation_checked:
        yield check_collateral_age(basis)


def _check_tcb(
    verdict: SnpVerdict, references: SnpReferences
) -> Iterator[AppraisalCheck]:
    product, report = verdict.endorsement.product, verdict.report
    floor = references.min_tcb.get(product)
    expected = f"a product that the references name (not {product})"
    if floor is not None:
        lowest = (f"{name} {floor[name]}" for name in TCB_FIELDS if name in floor)
        expected = f"at least {' '.join(lowest) or 'anything'}"
    for name in ("reported", "committed", "launch"):
        tcb = parse_tcb(getattr(report, f"{name}_tcb"), product)
        yield check(
            floor is not None and tcb.reaches(floor),
            f"SNP {name} TCB of {product}",
            expected,
            tcb.to_text(),
            "snp-tcb",
        )


def platform_facts(report: SnpReport) -> dict[PlatformFact, bool]:
    """What holds of the host, by the names that references use.

    A fact that the guest's policy enforces holds as well as one that the host reports.
    """
    policy, platform = report.policy, report.platform
    return {
        "smt-off": not policy.smt or not platform.smt,
        "ciphertext-hiding": policy.ciphertext_hiding or platform.ciphertext_hiding,
        "rapl-off": policy.rapl_disabled or platform.rapl_disabled,
        "alias-check": platform.alias_check,
        "single-socket": policy.single_socket,
    }


def attester_of(verdict: SnpVerdict) -> str:
    """Stable text of who signed: a chip, or one guest under an operator's key."""
    if verdict.endorsement.chip_id:
        return f"snp-chip:{verdict.endorsement.chip_id.hex()}"
    return f"snp-guest:{verdict.report.report_id.hex()}"


def measurements(report: SnpReport) -> dict[str, bytes]:
    """Every measurement of a report by name."""
    return {
        "launch": report.measurement,
        "host_data": report.host_data,
        "id_key": report.id_key_digest,
        "author_key": report.author_key_digest,
    }


def trust_of(
    verdict: SnpVerdict, references: SnpReferences, checks: tuple[AppraisalCheck, ...]
) -> TrustVector:
    """Within the ceiling of its kind; affirming needs every check to pass."""
    old = any(each.code == "snp-tcb" for each in checks)
    visible = verdict.report.policy.debug
    passed = all_but_freshness(checks)
    return TrustVector(
        instance_identity=2 if references.chips and passed else 0,
        configuration=2 if passed else 32,
        executables=2 if passed else 33,
        hardware=96 if visible else 32 if old else 2,
        runtime_opaque=96 if visible else 2,
    )


def notes_of(verdict: SnpVerdict, references: SnpReferences) -> Iterator[str]:
    """Plain words: what was not checked, whom one still trusts."""
    facts = platform_facts(verdict.report)
    for fact in (fact for fact, holds in facts.items() if not holds):
        yield f"the host: {fact} {_MISSING}"
    if unknown := verdict.report.platform.unknown << 6:
        yield f"the host reports platform bits that are unknown here: {unknown:#x}"
    if verdict.endorsement.operator:
        yield f"the key names its operator and no chip: {verdict.endorsement.operator}"
    if not verdict.revocation_checked:
        yield "AMD's revocation list was not checked"
    if not references.chips:
        yield "any chip of the product may have answered"
