"""Verifies TDX evidence: a genuine quote, and everything in it that decides (rule M7).

Source: spec/evidence-tdx.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sealift.attest.anchors import INTEL_SGX_ROOTS
from sealift.attest.check import Check, all_but_freshness, check_code_bundle
from sealift.attest.collateral import Collateral
from sealift.attest.evidence import Evidence
from sealift.attest.level import Level
from sealift.attest.reference import ReferenceValues, no_references
from sealift.attest.runtimelog import measured_bundle
from sealift.attest.tdx.checks import (
    DEBUG,
    check_logs,
    check_platform,
    check_report,
)
from sealift.attest.tdx.evidence import MEDIA_TYPE, TdxBody, parse_body
from sealift.attest.tdx.intelquote import QuoteVerdict, verify_quote
from sealift.attest.tdx.quote import TdReport, parse_quote
from sealift.attest.tdx.references import TdxReferences
from sealift.attest.tdx.tcblevel import UNKNOWN
from sealift.attest.trust import TrustVector
from sealift.attest.verifier import Claims
from sealift.errors import EvidenceError
from sealift.ids import Digest

RESULT_MEDIA_TYPE: Final = "application/eat+jwt"
# AR4SI: 2 genuine, 32 genuine with known weaknesses, 96 not to be used, 97 unknown.
_HARDWARE: Final = {"UpToDate": 2, "Revoked": 96, UNKNOWN: 97}
_MODULE_FEATURES: Final = {30: "protection keys (PKS)", 63: "perfmon"}


@dataclass(frozen=True, slots=True)
class TdxVerifier:
    """Verifies the quote; compares guest, platform and logs with the references.

    Attributes:
        roots: Trusted roots of platform certificates: Intel's.
    """

    roots: tuple[Digest, ...] = tuple(INTEL_SGX_ROOTS.values())

    @property
    def media_type(self) -> str:
        """The format that it parses."""
        return MEDIA_TYPE

    @property
    def levels(self) -> frozenset[Level]:
        """Encrypted memory of a virtual machine, and no other."""
        return frozenset({Level.TEE})

    @property
    def result_media_type(self) -> str:
        """How results are marked."""
        return RESULT_MEDIA_TYPE

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
        if references.tdx is None:
            raise no_references("TDX")
        body = parse_body(evidence.body)
        quote = parse_quote(body.quote)
        if not isinstance(quote.body, TdReport):
            raise EvidenceError(
                "a quote of an SGX enclave, not of a TDX guest", code="quote-not-tdx"
            )
        verdict = verify_quote(quote, collateral, at_s=at_s, roots=self.roots)
        code_bundle = measured_bundle(body.events)
        checks = (
            *check_report(quote.body, bound, references.tdx),
            *check_logs(quote.body, body),
            *check_platform(verdict, references, collateral, at_s=at_s),
            check_code_bundle(code_bundle, references.code_bundle),
        )
        return Claims(
            level=Level.TEE,
            attester=f"ppid:{verdict.platform.ppid.hex()}",
            role=None,
            code_bundle=code_bundle,
            trust=_trust(quote.body, verdict, references.tdx, checks),
            checks=checks,
            measurements=measurements(quote.body),
            events=body.events,
            notes=tuple(_notes(quote.body, verdict, body)),
        )


def measurements(report: TdReport) -> dict[str, bytes]:
    """Every measurement of a TD report by name."""
    registers = {f"rtmr{i}": value for i, value in enumerate(report.rtmr)}
    return {
        "mrtd": report.mrtd,
        "mrconfigid": report.mrconfigid,
        "mrowner": report.mrowner,
        "mrownerconfig": report.mrownerconfig,
        "mrseam": report.mrseam,
        **registers,
    }


def hardware_claim(status: str) -> int:
    """AR4SI's claim about a platform of this TCB status."""
    return _HARDWARE.get(status, 32)


def _trust(
    report: TdReport,
    verdict: QuoteVerdict,
    references: TdxReferences,
    checks: tuple[Check, ...],
) -> TrustVector:
    """Within the ceiling of its kind; affirming needs every check to pass."""
    passed = all_but_freshness(checks)
    visible = bool(report.attributes & DEBUG)
    return TrustVector(
        instance_identity=2 if references.platforms and passed else 0,
        configuration=2 if passed else 32,
        executables=2 if passed else 33,
        hardware=96 if visible else hardware_claim(verdict.status),
        runtime_opaque=96 if visible else 2,
    )


def _notes(report: TdReport, verdict: QuoteVerdict, body: TdxBody) -> list[str]:
    notes = [f"platform TCB {verdict.status}"]
    if verdict.advisories:
        notes.append(f"advisories {', '.join(verdict.advisories)}")
    notes += [
        f"the guest may use {name}"
        for bit, name in _MODULE_FEATURES.items()
        if report.attributes >> bit & 1
    ]
    if body.ccel is None:
        notes.append("no firmware log: registers are compared, not explained")
    if verdict.platform.smt:
        notes.append("hyper-threading is on")
    return notes
