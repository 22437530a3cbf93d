"""Verifies TDX evidence: a genuine quote, and everything in it that decides (rule M7).

Source: spec/evidence-tdx.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from sealift.attest.collateral import INTEL_SGX_ROOTS
from sealift.attest.evidence import Evidence
from sealift.attest.level import Level, TrustVector
from sealift.attest.reference import (
    AppraisalBasis,
    TdxFeature,
    TdxReferences,
    require_references,
)
from sealift.attest.runtimelog import measured_bundle, replay
from sealift.attest.tdx.evidence import (
    REGISTER_HASH,
    RUNTIME_REGISTER,
    TdReport,
    TdxBody,
    parse_quote,
)
from sealift.attest.tdx.platform import QuoteVerdict, verify_quote
from sealift.attest.tdx.tcb import UNKNOWN
from sealift.attest.tpm.eventlog import parse, rtmrs
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
from sealift.crypto.certificate import say_time
from sealift.errors import EvidenceError
from sealift.ids import Digest

# Intel TDX module ABI, ATTRIBUTES.
DEBUG: Final = 0xFF  # bit 0, and what else lets somebody see or disturb the guest
SEPT_VE_DISABLE: Final = 1 << 28
MIGRATABLE: Final = 1 << 29
_KNOWN: Final = DEBUG | sum(1 << bit for bit in (16, 27, 28, 29, 30, 31, 62, 63))
_FEATURES: Final = {30: "protection keys (PKS)", 63: "perfmon"}
# XFAM: the bits of every guest, and each feature's, which are set together or not at all.
_ALWAYS: Final = 0b11
_XFAM: Final[Mapping[TdxFeature, int]] = {
    "avx": 1 << 2, "avx-512": 7 << 5, "processor-trace": 1 << 8,
    "protection-keys": 1 << 9, "cet": 3 << 11, "user-interrupts": 1 << 14,
    "lbr": 1 << 15, "amx": 3 << 17,
}  # fmt: skip
BOOT_REGISTERS: Final = (0, 1, 2)
"""RTMRs that firmware and boot loader extend, and references pin."""
# AR4SI: 2 genuine, 32 genuine with known weaknesses, 96 not to be used, 97 unknown.
_HARDWARE: Final = {"UpToDate": 2, "Revoked": 96, UNKNOWN: 97}


def examine_tdx(
    evidence: Evidence,
    basis: AppraisalBasis,
    roots: Sequence[Digest] = tuple(INTEL_SGX_ROOTS.values()),
) -> Claims:
    """Verify the quote; compare guest, platform and logs with the references.

    Args:
        evidence: Of one guest.
        basis: What it is judged by.
        roots: Trusted roots of platform certificates: Intel's.
    """
    references = require_references(basis.references.tdx, "TDX")
    body = TdxBody.parse(evidence.body)
    report, verdict = verify_guest(body.quote, basis, tuple(roots))
    code_bundle = measured_bundle(body.events)
    checks = (
        *check_report(report, basis.bound, references),
        *check_logs(report, body),
        *check_platform(verdict, basis, references),
        check_code_bundle(code_bundle, basis.references.code_bundle),
    )
    return Claims(
        level=Level.TEE,
        attester=f"ppid:{verdict.platform.ppid.hex()}",
        code_bundle=code_bundle,
        trust=trust_of(report, verdict, references, all_but_freshness(checks)),
        checks=checks,
        measurements=measurements(report),
        events=body.events,
        notes=tuple(_notes(report, verdict, body)),
    )


def verify_guest(
    raw: bytes, basis: AppraisalBasis, roots: tuple[Digest, ...]
) -> tuple[TdReport, QuoteVerdict]:
    """What a genuine quote says of a TDX guest, and of the platform under it.

    Raises:
        EvidenceError: ``quote-not-tdx``, or as ``verify_quote``.
        MalformedError: if a part does not parse.
    """
    quote = parse_quote(raw)
    if not isinstance(quote.body, TdReport):
        raise EvidenceError(
            "the quote is of an SGX enclave, not of a TDX guest", code="quote-not-tdx"
        )
    verdict = verify_quote(quote, basis.collateral, at_s=basis.at_s, roots=roots)
    return quote.body, verdict


def check_report(
    report: TdReport, bound: bytes | None, references: TdxReferences
) -> Iterator[AppraisalCheck]:
    """The guest: bound value, attributes, measurements."""
    yield check_bound(report.report_data, bound, "TDX report data")
    yield from _check_attributes(report, references)
    yield from _check_features(report, references)
    service_td = report.mrservicetd or bytes(48)
    for found, allowed, subject, code in (
        (
            service_td,
            references.mrservicetd,
            "TDX service TDs (MRSERVICETD)",
            "tdx-service-td",
        ),
        (report.mrtd, references.mrtd, "MRTD", "tdx-mrtd"),
        (report.mrconfigid, references.mrconfigid, "MRCONFIGID", "tdx-mrconfigid"),
    ):
        yield check_among(found, allowed, subject, code=code)
    for number in BOOT_REGISTERS:
        allowed = references.rtmr.get(str(number), ())
        yield check_among(
            report.rtmr[number], allowed, f"RTMR {number}", code="tdx-rtmr"
        )


def _check_attributes(
    report: TdReport, references: TdxReferences
) -> Iterator[AppraisalCheck]:
    found = f"attributes {report.attributes:#018x}"
    wanted = references.sept_ve_disable
    set_or_any = not wanted or bool(report.attributes & SEPT_VE_DISABLE)
    movable, unknown = report.attributes & MIGRATABLE, report.attributes & ~_KNOWN
    for holds, subject, expected, code in (
        (not report.attributes & DEBUG, "debug", "off", "tdx-debug"),
        (not movable, "migration", "the guest cannot be migrated", "tdx-migratable"),
        (set_or_any, "SEPT_VE_DISABLE", "set" if wanted else "any", "tdx-sept-ve"),
        (
            not unknown,
            "attributes",
            "only attributes that this version knows",
            "tdx-attributes",
        ),
    ):
        yield check(holds, f"TDX {subject}", expected, found, code)


def features_of(report: TdReport) -> tuple[TdxFeature, ...]:
    """The extended features that the guest may use, by name."""
    return tuple(name for name, bits in _XFAM.items() if report.xfam & bits == bits)


def _check_features(
    report: TdReport, references: TdxReferences
) -> Iterator[AppraisalCheck]:
    """No TDX module makes a guest with other bits; which ones is for the parties."""
    found, allowed = features_of(report), references.features
    named = sum(_XFAM[name] for name in found) | _ALWAYS
    yield check(
        report.xfam == named and ("avx-512" not in found or "avx" in found),
        "TDX XFAM",
        "bits as Intel's specification fixes and joins them",
        f"XFAM {report.xfam:#018x}",
        "tdx-xfam",
    )
    yield check(
        allowed is None or set(found) <= set(allowed),
        "TDX extended features",
        "any" if allowed is None else f"only {', '.join(allowed) or 'the basic ones'}",
        ", ".join(found) or "the basic ones",
        "tdx-features",
    )


def check_logs(report: TdReport, body: TdxBody) -> tuple[AppraisalCheck, ...]:
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
    shown = {number: value.hex() for number, value in replayed.items()}
    if not body.events:
        shown[RUNTIME_REGISTER] = "no events of Sealift, so it must be zeros"
    return tuple(
        check(
            replayed[number] == report.rtmr[number],
            f"log of RTMR {number}",
            f"replays to {report.rtmr[number].hex()}",
            shown[number],
            "tdx-log",
            refusal="evidence",
        )
        for number in sorted(replayed)
    )


def check_platform(
    verdict: QuoteVerdict, basis: AppraisalBasis, references: TdxReferences
) -> Iterator[AppraisalCheck]:
    """The hardware under the guest, and how old what is known of it is."""
    advisories = f" ({', '.join(verdict.advisories)})" if verdict.advisories else ""
    yield check(
        verdict.status in references.tcb_statuses,
        "TCB status of the platform",
        " or ".join(references.tcb_statuses) or "no status is allowed",
        verdict.status + advisories,
        "tcb-status",
    )
    yield check(
        verdict.evaluation >= references.min_tcb_evaluation,
        "TCB evaluation data number",
        f"at least {references.min_tcb_evaluation}",
        str(verdict.evaluation),
        "tcb-evaluation-old",
        refusal="stale",
    )
    if references.platforms:
        ppid = verdict.platform.ppid
        yield check_among(
            ppid, references.platforms, "platform (PPID)", code="tdx-platform"
        )
    yield check(
        verdict.issued_s <= basis.at_s <= verdict.due_s,
        "time of Intel's lists",
        say_time(basis.at_s),
        f"{say_time(verdict.issued_s)} to {say_time(verdict.due_s)}",
        "tcb-lists-expired",
        refusal="stale",
    )
    yield check_collateral_age(basis)


def measurements(report: TdReport) -> dict[str, bytes]:
    """Every measurement of a TD report by name."""
    return {
        "mrtd": report.mrtd,
        "mrconfigid": report.mrconfigid,
        "mrowner": report.mrowner,
        "mrownerconfig": report.mrownerconfig,
        "mrseam": report.mrseam,
        "xfam": report.xfam.to_bytes(8, "little"),
        **{f"rtmr{number}": value for number, value in enumerate(report.rtmr)},
    }


def trust_of(
    report: TdReport, verdict: QuoteVerdict, references: TdxReferences, passed: bool
) -> TrustVector:
    """Within the ceiling of its kind; affirming needs every check to have passed."""
    visible = bool(report.attributes & DEBUG)
    return TrustVector(
        instance_identity=2 if references.platforms and passed else 0,
        configuration=2 if passed else 32,
        executables=2 if passed else 33,
        hardware=96 if visible else _HARDWARE.get(verdict.status, 32),
        runtime_opaque=96 if visible else 2,
    )


def _notes(report: TdReport, verdict: QuoteVerdict, body: TdxBody) -> Iterator[str]:
    yield f"platform TCB {verdict.status}"
    if verdict.advisories:
        yield f"advisories {', '.join(verdict.advisories)}"
    for bit, name in _FEATURES.items():
        if report.attributes >> bit & 1:
            yield f"the guest may use {name}"
    if body.ccel is None:
        yield "there is no firmware log: registers are compared, but not explained"
    if verdict.platform.smt:
        yield "hyper-threading is on"
