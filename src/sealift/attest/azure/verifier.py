"""Verifies Azure evidence: hardware, the paravisor's claims, the virtual TPM's quote.

Hardware vouches for the digest of the claims, the claims name the key, the key signs the
quote, the quote carries the bound value and the registers. Source: spec/evidence-azure.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sealift.attest.azure.evidence import (
    MEDIA_TYPE,
    USER_DATA_BYTES,
    AzureBody,
    HclReport,
    RuntimeClaims,
    parse_body,
    parse_claims,
    parse_hcl,
)
from sealift.attest.check import (
    Check,
    all_but_freshness,
    check,
    check_bound,
    check_code_bundle,
)
from sealift.attest.collateral import AMD_ARKS, INTEL_SGX_ROOTS, Collateral
from sealift.attest.evidence import Evidence
from sealift.attest.level import Level, TrustVector
from sealift.attest.reference import ReferenceValues, no_references
from sealift.attest.runtimelog import measured_bundle
from sealift.attest.snp import verifier as snpchecks
from sealift.attest.snp.endorsement import SnpTrust, verify_report
from sealift.attest.snp.verifier import attester_of
from sealift.attest.tdx import evidence as tdx_quote
from sealift.attest.tdx import verifier as tdchecks
from sealift.attest.tdx.evidence import TdReport
from sealift.attest.tdx.platform import QuoteVerdict, verify_quote
from sealift.attest.tdx.verifier import hardware_claim
from sealift.attest.tdx.verifier import measurements as td_measurements
from sealift.attest.tpm.evidence import (
    Quote,
    clock_measurements,
    parse_quote,
    parse_signature,
    verify_values,
)
from sealift.attest.tpm.references import TpmReferences
from sealift.attest.tpm.structures import Scheme
from sealift.attest.tpm.verifier import (
    check_boot,
    check_clock,
    check_registers,
    check_runtime,
    replay_boot,
)
from sealift.attest.verifier import Claims
from sealift.errors import AuthenticationError, EvidenceError, MalformedError
from sealift.ids import Digest

REPORT_DATA_BYTES: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureTrust:
    """What genuineness depends on, beside the evidence."""

    references: ReferenceValues
    collateral: Collateral
    amd_roots: Mapping[str, Digest]
    intel_roots: tuple[Digest, ...]
    at_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Genuine hardware under a paravisor; ``trust`` is before the guest's checks."""

    attester: str
    checks: tuple[Check, ...]
    trust: TrustVector
    measurements: dict[str, bytes]
    notes: tuple[str, ...]


def examine_hardware(body: AzureBody, hcl: HclReport, trust: AzureTrust) -> Hardware:
    """Verify the hardware's report over the paravisor's claims, and compare it.

    Raises:
        PolicyError: ``references-missing``.
        EvidenceError: if it is not genuine, or not over these claims.
        MalformedError: if a part does not parse.
    """
    if hcl.kind == "snp":
        return _examine_snp(body, hcl, trust)
    return _examine_tdx(body, hcl, trust)


def _examine_snp(body: AzureBody, hcl: HclReport, trust: AzureTrust) -> Hardware:
    references = trust.references.snp
    if references is None:
        raise no_references("SEV-SNP")
    _require_no_other("td_quote", bool(body.td_quote))
    chain = SnpTrust(
        collateral=trust.collateral,
        roots=trust.amd_roots,
        at_s=trust.at_s,
        revocation=references.revocation == "required",
    )
    verdict = verify_report(hcl.hardware, body.certificates, chain)
    report = verdict.report
    _require_over(report.report_data, hcl.digest)
    if report.vmpl != 0:
        raise EvidenceError(
            "the report was not made by the paravisor",
            why=f"privilege level (VMPL) {report.vmpl} asked for it, the paravisor has 0",
            code="azure-vmpl",
        )
    checks = (
        *snpchecks.check_guest(report, hcl.digest, references),
        snpchecks.check_host_data(report, references, trust.references.code_bundle),
        *snpchecks.check_chip(
            verdict, trust.references, trust.collateral, at_s=trust.at_s
        ),
    )
    return Hardware(
        attester=attester_of(verdict),
        checks=checks,
        trust=snpchecks.trust_of(verdict, references, checks),
        measurements=snpchecks.measurements(report),
        notes=tuple(snpchecks.notes_of(verdict, references)),
    )


def _examine_tdx(body: AzureBody, hcl: HclReport, trust: AzureTrust) -> Hardware:
    references = trust.references.tdx
    if references is None:
        raise no_references("TDX")
    _require_no_other("certificates", bool(body.certificates))
    quote = tdx_quote.parse_quote(body.td_quote)
    report = quote.body
    if not isinstance(report, TdReport):
        raise EvidenceError(
            "a quote of an SGX enclave, not of a TDX guest", code="quote-not-tdx"
        )
    verdict = verify_quote(
        quote, trust.collateral, at_s=trust.at_s, roots=trust.intel_roots
    )
    _require_over(report.report_data, hcl.digest)
    checks = (
        *tdchecks.check_report(report, hcl.digest, references),
        _check_untouched(report),
        *tdchecks.check_platform(
            verdict, trust.references, trust.collateral, at_s=trust.at_s
        ),
    )
    return Hardware(
        attester=f"ppid:{verdict.platform.ppid.hex()}",
        checks=checks,
        trust=_td_trust(report, verdict, bool(references.platforms)),
        measurements=td_measurements(report),
        notes=(f"platform TCB {verdict.status}",),
    )


def _require_no_other(field: str, present: bool) -> None:
    if present:
        raise MalformedError("a part of another kind of hardware", field=field)


def _require_over(report_data: bytes, digest: bytes) -> None:
    """The hardware vouches for these claims, so for the keys that they name."""
    if report_data != digest.ljust(REPORT_DATA_BYTES, b"\0"):
        raise EvidenceError(
            "the hardware's report is not over the paravisor's claims",
            why="its report data is not their digest",
            code="azure-claims",
        )


def _check_untouched(report: TdReport) -> Check:
    """The paravisor extends no register: the virtual TPM has those of the guest."""
    return check(
        not any(report.rtmr[3]),
        "RTMR 3",
        expected="untouched",
        found=report.rtmr[3].hex(),
        code="tdx-rtmr",
    )


def _td_trust(report: TdReport, verdict: QuoteVerdict, pinned: bool) -> TrustVector:
    visible = bool(report.attributes & tdchecks.DEBUG)
    return TrustVector(
        instance_identity=2 if pinned else 0,
        hardware=96 if visible else hardware_claim(verdict.status),
        runtime_opaque=96 if visible else 2,
    )


RESULT_MEDIA_TYPE: Final = "application/eat+jwt"
# The paravisor makes this key for quotes only; its public area is not in the claims.
_SCHEME: Final = Scheme("rsassa", "sha256")
_PARAVISOR: Final = "Azure's paravisor is trusted: it sees all memory and holds the TPM"


@dataclass(frozen=True, slots=True)
class _Guest:
    """What the virtual TPM signed; all of it may be compared, none of it was yet."""

    body: AzureBody
    claims: RuntimeClaims
    quote: Quote
    values: dict[int, bytes]
    tpm: TpmReferences


class AzureVerifier:
    """Verifies hardware, claims and quote; compares them with the references.

    Args:
        amd_roots: AMD's root keys by product.
        intel_roots: Intel's root keys.
    """

    media_type = MEDIA_TYPE
    levels = frozenset({Level.TEE})
    result_media_type = RESULT_MEDIA_TYPE

    def __init__(
        self,
        amd_roots: Mapping[str, Digest] = AMD_ARKS,
        intel_roots: Sequence[Digest] = tuple(INTEL_SGX_ROOTS.values()),
    ) -> None:
        self._amd_roots = amd_roots
        self._intel_roots = tuple(intel_roots)

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
        if references.tpm is None:
            raise no_references("the virtual TPM of Azure's guests")
        body = parse_body(evidence.body)
        hcl = parse_hcl(body.hcl_report)
        trust = AzureTrust(
            references=references,
            collateral=collateral,
            amd_roots=self._amd_roots,
            intel_roots=self._intel_roots,
            at_s=at_s,
        )
        hardware = examine_hardware(body, hcl, trust)
        guest = _verify_guest(body, parse_claims(hcl.claims), references.tpm)
        return _judge(hardware, guest, bound, references)


def _verify_guest(
    body: AzureBody, claims: RuntimeClaims, references: TpmReferences
) -> _Guest:
    quote, signature = parse_quote(body.quote), parse_signature(body.signature)
    try:
        if signature.scheme != _SCHEME:
            raise AuthenticationError
        signature.verify(claims.attestation_key, quote.raw)
    except AuthenticationError:
        raise EvidenceError(
            "the quote is not signed by the key that the paravisor names",
            code="tpm-signature",
        ) from None
    values = body.registers()
    verify_values(quote, values, _SCHEME.hash)
    if references.bank not in values:
        raise MalformedError(f"no {references.bank} registers are quoted", field="pcrs")
    return _Guest(body, claims, quote, values[references.bank], references)


def _judge(
    hardware: Hardware, guest: _Guest, bound: bytes | None, references: ReferenceValues
) -> Claims:
    code_bundle = measured_bundle(guest.body.events)
    checks = (
        *_check_guest(guest, bound),
        *hardware.checks,
        check_code_bundle(code_bundle, references.code_bundle),
    )
    registers = {f"pcr{number}": raw for number, raw in guest.values.items()}
    clock = clock_measurements(guest.quote.clock)
    return Claims(
        level=Level.TEE,
        attester=hardware.attester,
        role=None,
        code_bundle=code_bundle,
        trust=_trust(hardware, checks),
        checks=checks,
        measurements={**hardware.measurements, **registers, **clock},
        events=guest.body.events,
        notes=(*hardware.notes, *_notes(guest)),
    )


def _check_guest(guest: _Guest, bound: bytes | None) -> Iterator[Check]:
    body, tpm = guest.body, guest.tpm
    yield check_bound(guest.quote.extra, bound, "qualifying data of the quote")
    yield from _check_user_data(guest.claims, bound)
    yield check_clock(guest.quote.clock)
    yield from _check_owner(guest.claims, tpm)
    yield from check_registers(guest.values, tpm)
    replayed = replay_boot(body.event_log, tpm)
    if body.event_log:
        yield from check_boot(guest.values, replayed, tpm)
    yield check_runtime(guest.values, body.events, tpm)
    yield check(
        tpm.ima is None,
        "IMA list",
        expected="what may run, in a list" if tpm.ima else "none",
        found="none: this kind of evidence has no place for one",
        code="azure-ima",
    )


def _check_user_data(claims: RuntimeClaims, bound: bytes | None) -> Iterator[Check]:
    """User data that a guest asked to include is of this handshake, or of none."""
    if any(claims.user_data):
        yield check_bound(
            claims.user_data, bound, "user data of the paravisor's report"
        )


def _check_owner(claims: RuntimeClaims, tpm: TpmReferences) -> Iterator[Check]:
    if not tpm.endorsement_keys:
        return
    key = claims.endorsement_key
    found = Digest.of(key.to_spki()) if key else None
    yield check(
        found in tpm.endorsement_keys,
        "endorsement key of the virtual TPM",
        expected=" or ".join(each.to_text() for each in tpm.endorsement_keys),
        found=found.to_text() if found else "none",
        code="azure-endorsement-key",
    )


def _trust(hardware: Hardware, checks: Sequence[Check]) -> TrustVector:
    """The hardware's, and affirming about the guest only if every check passed."""
    passed = all_but_freshness(checks)
    return replace(
        hardware.trust,
        configuration=2 if passed else 32,
        executables=2 if passed else 33,
        instance_identity=hardware.trust.instance_identity if passed else 0,
    )


def _notes(guest: _Guest) -> Iterator[str]:
    yield _PARAVISOR
    if guest.claims.vm_id:
        yield f"virtual machine {guest.claims.vm_id}"
    if guest.claims.user_data == bytes(USER_DATA_BYTES):
        yield "only the quote is fresh: the hardware's report may be older"
    if guest.claims.console:
        yield "the serial console is enabled"
    if not guest.claims.secure_boot:
        yield "secure boot is off"
    if not guest.body.event_log:
        yield "no event log: registers are compared, not explained"
    if not guest.tpm.endorsement_keys:
        yield "any guest with these measurements may have answered"
