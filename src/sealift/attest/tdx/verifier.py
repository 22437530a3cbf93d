"""Verifies TDX evidence: a genuine quote, and everything in it that decides (rule M7).

Source: spec/evidence-tdx.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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
from sealift.attest.collateral import INTEL_SGX_ROOTS, Collateral
from sealift.attest.evidence import Evidence
from sealift.attest.level import Level, TrustVector
from sealift.attest.reference import ReferenceValues, no_references
from sealift.attest.runtimelog import measured_bundle, replay
from sealift.attest.tdx.evidence import (
    MEDIA_TYPE,
    REGISTER_HASH,
    RUNTIME_REGISTER,
    TdReport,
    TdxBody,
    parse_body,
    parse_quote,
)
from sealift.attest.tdx.platform import QuoteVerdict, verify_quote
from sealift.attest.tdx.references import TdxReferences
from sealift.attest.tdx.tcb import UNKNOWN
from sealift.attest.tpm.eventlog import parse, rtmrs
from sealift.attest.verifier import Claims
from sealift.crypto.certificate import say_time
from sealift.errors import EvidenceError
from sealift.ids import Digest

# Intel TDX module ABI, ATTRIBUTES.
DEBUG: Final = 0xFF  # bit 0, and what else lets somebody see or disturb the guest
SEPT_VE_DISABLE: Final = 1 << 28
MIGRATABLE: Final = 1 << 29
_KNOWN: Final = DEBUG | sum(1 << bit for bit in (16, 27, 28, 29, 30, 31, 62, 63))
BOOT_REGISTERS: Final = (0, 1, 2)
"""RTMRs that firmware and boot loader extend, and references pin."""


def check_report(
    report: TdReport, bound: bytes | None, references: TdxReferences
) -> tuple[Check, ...]:
    """The guest: bound value, attributes, measurements."""
    return (
        check_bound(report.report_data, bound, "TDX report data"),
        *_check_attributes(report, references),
        check_among(
            report.mrservicetd or bytes(48),
            references.mrservicetd,
            "TDX service TDs (MRSERVICETD)",
            code="tdx-service-td",
        ),
        check_among(report.mrtd, references.mrtd, "MRTD", code="tdx-mrtd"),
        check_among(
            report.mrconfigid,
            references.mrconfigid,
            "MRCONFIGID",
            code="tdx-mrconfigid",
        ),
        *(
            check_among(
                report.rtmr[number],
                references.rtmr.get(str(number), ()),
                f"RTMR {number}",
                code="tdx-rtmr",
            )
            for number in BOOT_REGISTERS
        ),
    )


def check_logs(report: TdReport, body: TdxBody) -> tuple[Check, ...]:
    """The logs give the registers: firmware's 0 to 2, our events all of RTMR 3.

    Were firmware's log believed about RTMR 3, whoever sends it could hide the first
    events there (another code bundle, a late binding of GPUs) as firmware's.

    Raises:
        MalformedError: if firmware's log does not parse.
    """
    replayed = {RUNTIME_REGISTER: replay(body.events, REGISTER_HASH, bytes(48))}
    if body.ccel is not None:
        booted = rtmrs(parse(body.ccel))
        replayed |= {each: booted.get(each, bytes(48)) for each in BOOT_REGISTERS}
    return tuple(
        _check_replay(number, replayed[number], report.rtmr[number])
        for number in sorted(replayed)
    )


def check_platform(
    verdict: QuoteVerdict,
    references: ReferenceValues,
    collateral: Collateral,
    *,
    at_s: int,
) -> Iterator[Check]:
    """The hardware under the guest, and how old what is known of it is."""
    assert references.tdx is not None, "the caller needs them before"
    yield _check_status(verdict, references.tdx)
    yield check(
        verdict.evaluation >= references.tdx.min_tcb_evaluation,
        "TCB evaluation data number",
        expected=f"at least {references.tdx.min_tcb_evaluation}",
        found=str(verdict.evaluation),
        code="tcb-evaluation-old",
        refusal="stale",
    )
    if references.tdx.platforms:
        yield check_among(
            verdict.platform.ppid,
            references.tdx.platforms,
            "platform (PPID)",
            code="tdx-platform",
        )
    yield _check_lists(verdict, at_s)
    yield check_collateral_age(
        collateral, max_age_s=references.collateral_max_age_s, at_s=at_s
    )


def _check_attributes(report: TdReport, references: TdxReferences) -> Iterator[Check]:
    found = f"attributes {report.attributes:#018x}"
    yield check(
        not report.attributes & DEBUG,
        "TDX debug",
        expected="off",
        found=found,
        code="tdx-debug",
    )
    yield check(
        not report.attributes & MIGRATABLE,
        "TDX migration",
        expected="the guest cannot be migrated",
        found=found,
        code="tdx-migratable",
    )
    yield check(
        not references.sept_ve_disable or bool(report.attributes & SEPT_VE_DISABLE),
        "TDX SEPT_VE_DISABLE",
        expected="set" if references.sept_ve_disable else "any",
        found=found,
        code="tdx-sept-ve",
    )
    yield check(
        not report.attributes & ~_KNOWN,
        "TDX attributes",
        expected="none that is unknown here",
        found=found,
        code="tdx-attributes",
    )


def _check_replay(number: int, replayed: bytes, found: bytes) -> Check:
    return check(
        replayed == found,
        f"log of RTMR {number}",
        expected=f"replays to {found.hex()}",
        found=replayed.hex(),
        code="tdx-log",
        refusal="evidence",
    )


def _check_status(verdict: QuoteVerdict, references: TdxReferences) -> Check:
    advisories = f" ({', '.join(verdict.advisories)})" if verdict.advisories else ""
    return check(
        verdict.status in references.tcb_statuses,
        "TCB status of the platform",
        expected=" or ".join(references.tcb_statuses) or "no status is allowed",
        found=verdict.status + advisories,
        code="tcb-status",
    )


def _check_lists(verdict: QuoteVerdict, at_s: int) -> Check:
    return check(
        verdict.issued_s <= at_s <= verdict.due_s,
        "time of Intel's lists",
        expected=say_time(at_s),
        found=f"{say_time(verdict.issued_s)} to {say_time(verdict.due_s)}",
        code="tcb-lists-expired",
        refusal="stale",
    )


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
