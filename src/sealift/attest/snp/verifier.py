"""Verifies SEV-SNP evidence: a genuine report, and all in it that decides (rule M7).

Source: spec/evidence-snp.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from sealift.attest.check import (
    Check,
    all_but_freshness,
    check,
    check_among,
    check_bound,
    check_code_bundle,
    check_collateral_age,
)
from sealift.attest.collateral import AMD_ARKS, Collateral
from sealift.attest.evidence import Evidence
from sealift.attest.level import Level, TrustVector
from sealift.attest.reference import ReferenceValues, no_references
from sealift.attest.snp.endorsement import SnpTrust, SnpVerdict, verify_report
from sealift.attest.snp.evidence import (
    MEDIA_TYPE,
    NO_MIGRATION_AGENT,
    TCB_FIELDS,
    Report,
    Tcb,
    parse_body,
    parse_tcb,
)
from sealift.attest.snp.references import PlatformFact, SnpReferences
from sealift.attest.verifier import Claims
from sealift.ids import Digest

_HOLDS: Final = "holds"
_MISSING: Final = "does not hold"


def check_guest(
    report: Report, bound: bytes | None, references: SnpReferences
) -> tuple[Check, ...]:
    """The guest: bound value, policy, privilege level, measurement."""
    return (
        check_bound(report.report_data, bound, "SNP report data"),
        *_check_policy(report),
        check(
            report.vmpl <= references.max_vmpl,
            "SNP privilege level (VMPL)",
            expected=f"at most {references.max_vmpl}",
            found=str(report.vmpl),
            code="snp-vmpl",
        ),
        check_among(
            report.measurement,
            references.measurement,
            "SNP launch digest",
            code="snp-measurement",
        ),
    )


def check_host_data(
    report: Report, references: SnpReferences, code_bundle: Digest | None
) -> Check:
    """HOST_DATA is pinned: as a value, or as the agreement's code bundle."""
    allowed: tuple[bytes, ...] = references.host_data
    if references.host_data_names_code:
        allowed = (code_bundle.raw,) if code_bundle else ()
    return check_among(report.host_data, allowed, "SNP HOST_DATA", code="snp-host-data")


def check_chip(
    verdict: SnpVerdict,
    references: ReferenceValues,
    collateral: Collateral,
    *,
    at_s: int,
) -> Iterator[Check]:
    """The hardware under the guest, and how old what is known of it is."""
    assert references.snp is not None, "the caller needs them before"
    yield from _check_tcb(verdict, references.snp)
    yield from _check_owner(verdict, references.snp)
    for fact in references.snp.platform:
        holds = platform_facts(verdict.report)[fact]
        yield check(
            holds,
            f"SNP host: {fact}",
            expected=_HOLDS,
            found=_HOLDS if holds else _MISSING,
            code="snp-platform",
        )
    if verdict.revocation_checked:
        yield check_collateral_age(
            collateral, max_age_s=references.collateral_max_age_s, at_s=at_s
        )


def platform_facts(report: Report) -> dict[PlatformFact, bool]:
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


def measurements(report: Report) -> dict[str, bytes]:
    """Every measurement of a report by name."""
    return {
        "launch": report.measurement,
        "host_data": report.host_data,
        "id_key": report.id_key_digest,
        "author_key": report.author_key_digest,
    }


def trust_of(
    verdict: SnpVerdict, references: SnpReferences, checks: Sequence[Check]
) -> TrustVector:
    """Within the ceiling of its kind; affirming needs every check to pass."""
    failed = {each.code for each in checks}
    visible = verdict.report.policy.debug
    passed = all_but_freshness(checks)
    return TrustVector(
        instance_identity=2 if references.chips and passed else 0,
        configuration=2 if passed else 32,
        executables=2 if passed else 33,
        hardware=96 if visible else 32 if "snp-tcb" in failed else 2,
        runtime_opaque=96 if visible else 2,
    )


def notes_of(verdict: SnpVerdict, references: SnpReferences) -> Iterator[str]:
    """Plain words: what was not checked, whom one still trusts."""
    facts = platform_facts(verdict.report)
    for fact in (fact for fact, holds in facts.items() if not holds):
        yield f"the host: {fact} {_MISSING}"
    if verdict.endorsement.operator:
        yield f"the key names its operator, no chip: {verdict.endorsement.operator}"
    if not verdict.revocation_checked:
        yield "AMD's revocation list was not looked at"
    if not references.chips:
        yield "any chip of the product may have answered"


def _check_policy(report: Report) -> Iterator[Check]:
    found = f"policy {report.policy.raw:#x}"
    yield check(
        not report.policy.debug,
        "SNP debug",
        expected="off",
        found=found,
        code="snp-debug",
    )
    alone = report.report_id_ma == NO_MIGRATION_AGENT
    yield check(
        alone and not report.policy.migration_agent,
        "SNP migration agent",
        expected="none, and none allowed",
        found=found if alone else report.report_id_ma.hex(),
        code="snp-migration-agent",
    )
    yield check(
        not report.policy.unknown,
        "SNP policy",
        expected="no bits that are unknown here",
        found=found,
        code="snp-policy-unknown",
    )


def _check_tcb(verdict: SnpVerdict, references: SnpReferences) -> Iterator[Check]:
    product, report = verdict.endorsement.product, verdict.report
    floor = references.min_tcb.get(product)
    versions = {
        "reported": report.reported_tcb,
        "committed": report.committed_tcb,
        "launch": report.launch_tcb,
    }
    for name, raw in versions.items():
        tcb = parse_tcb(raw, product)
        yield check(
            floor is not None and _reaches(tcb, floor),
            f"SNP {name} TCB of {product}",
            expected=f"no {product} is allowed" if floor is None else _say(floor),
            found=tcb.to_text(),
            code="snp-tcb",
        )


def _reaches(tcb: Tcb, floor: dict[str, int]) -> bool:
    return all(getattr(tcb, name) >= least for name, least in floor.items())


def _say(floor: dict[str, int]) -> str:
    named = (f"{name} {floor[name]}" for name in TCB_FIELDS if name in floor)
    return f"at least {' '.join(named) or 'anything'}"


def _check_owner(verdict: SnpVerdict, references: SnpReferences) -> Iterator[Check]:
    if verdict.endorsement.operator:
        yield check(
            verdict.endorsement.operator in references.operators,
            "SNP key of an operator (VLEK)",
            expected=" or ".join(references.operators) or "a chip's own key (VCEK)",
            found=verdict.endorsement.operator,
            code="snp-operator",
        )
    if references.chips:
        yield check_among(
            verdict.chip_id, references.chips, "SNP chip", code="snp-chip"
        )


RESULT_MEDIA_TYPE: Final = "application/eat+jwt"


class SnpVerifier:
    """Verifies the report; compares guest and chip with the references.

    Args:
        roots: AMD's root keys by product.
    """

    media_type = MEDIA_TYPE
    levels = frozenset({Level.TEE})
    result_media_type = RESULT_MEDIA_TYPE

    def __init__(self, roots: Mapping[str, Digest] = AMD_ARKS) -> None:
        self._roots = roots

    def examine(
        self,
        evidence: Evidence,
        *,
        bound: bytes | None,
        references: ReferenceValues,
        collateral: Collateral,
        at_s: int,
    ) -> Claims:
        """See ``Verifier.examine``."""
        expected = references.snp
        if expected is None:
            raise no_references("SEV-SNP")
        body = parse_body(evidence.body)
        trust = SnpTrust(
            collateral=collateral,
            roots=self._roots,
            at_s=at_s,
            revocation=expected.revocation == "required",
        )
        verdict = verify_report(body.report, body.certificates, trust)
        # Only where the agreement says so does the host's value name the code.
        named = Digest(verdict.report.host_data)
        code_bundle = named if expected.host_data_names_code else None
        checks = (
            *check_guest(verdict.report, bound, expected),
            check_host_data(verdict.report, expected, references.code_bundle),
            *check_chip(verdict, references, collateral, at_s=at_s),
            check_code_bundle(code_bundle, references.code_bundle),
        )
        return Claims(
            level=Level.TEE,
            attester=attester_of(verdict),
            role=None,
            code_bundle=code_bundle,
            trust=trust_of(verdict, expected, checks),
            checks=checks,
            measurements=measurements(verdict.report),
            notes=tuple(notes_of(verdict, expected)),
        )


def attester_of(verdict: SnpVerdict) -> str:
    """Stable text of who signed: a chip, or one guest under an operator's key."""
    if verdict.chip_id:
        return f"snp-chip:{verdict.chip_id.hex()}"
    return f"snp-guest:{verdict.report.report_id.hex()}"
