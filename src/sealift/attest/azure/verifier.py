"""Verifies Azure evidence: hardware, the paravisor's claims, the virtual TPM's quote.

Hardware vouches for the digest of the claims, the claims name the key, the key signs the
quote, the quote carries the bound value and the registers. Source: spec/evidence-azure.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sealift.attest.azure.evidence import (
    USER_DATA_BYTES,
    AzureBody,
    HclReport,
    RuntimeClaims,
    parse_claims,
    parse_hcl,
)
from sealift.attest.collateral import AMD_ARKS, INTEL_SGX_ROOTS
from sealift.attest.evidence import Evidence
from sealift.attest.level import Level, TrustVector
from sealift.attest.reference import AppraisalBasis, TpmReferences, require_references
from sealift.attest.runtimelog import measured_bundle
from sealift.attest.snp import verifier as snp
from sealift.attest.snp.endorsement import verify_report
from sealift.attest.tdx import verifier as tdx
from sealift.attest.tpm.evidence import (
    TpmQuote,
    clock_measurements,
    parse_quote,
    parse_signature,
    verify_values,
)
from sealift.attest.tpm.structures import Scheme
from sealift.attest.tpm.verifier import (
    check_boot,
    check_clock,
    check_registers,
    check_runtime,
)
from sealift.attest.verifier import (
    AppraisalCheck,
    Claims,
    all_but_freshness,
    check,
    check_bound,
    check_code_bundle,
)
from sealift.errors import AuthenticationError, EvidenceError, MalformedError
from sealift.ids import Digest

# The paravisor makes this key for quotes only; its public area is not in the claims.
_SCHEME: Final = Scheme("rsassa", "sha256")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Genuine hardware under a paravisor; ``trust`` is before the guest's checks."""

    attester: str
    checks: tuple[AppraisalCheck, ...]
    trust: TrustVector
    measurements: dict[str, bytes]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Guest:
    """What the virtual TPM signed; all of it may be compared, none of it was yet."""

    body: AzureBody
    claims: RuntimeClaims
    quote: TpmQuote
    values: dict[int, bytes]
    tpm: TpmReferences


def examine_azure(
    evidence: Evidence,
    basis: AppraisalBasis,
    amd_roots: Mapping[str, Digest] = AMD_ARKS,
    intel_roots: Sequence[Digest] = tuple(INTEL_SGX_ROOTS.values()),
) -> Claims:
    """Verify hardware, claims and quote; compare them with the references.

    Args:
        evidence: Of one guest.
        basis: What it is judged by.
        amd_roots: AMD's root keys by product.
        intel_roots: Intel's root keys.
    """
    kind = "the virtual TPM of Azure's guests"
    tpm = require_references(basis.references.tpm, kind)
    body = AzureBody.parse(evidence.body)
    hcl = parse_hcl(body.hcl_report)
    if hcl.kind == "snp":
        hardware = _examine_snp(body, hcl, basis, amd_roots)
    else:
        hardware = _examine_tdx(body, hcl, basis, tuple(intel_roots))
    guest = _verify_guest(body, parse_claims(hcl.claims), tpm)
    code_bundle = measured_bundle(body.events)
    checks = (
        *_check_guest(guest, basis.bound),
        *hardware.checks,
        check_code_bundle(code_bundle, basis.references.code_bundle),
    )
    # The hardware's, and affirming about the guest only if every check passed.
    passed = all_but_freshness(checks)
    pinned = hardware.trust.instance_identity if passed else 0
    return Claims(
        level=Level.TEE,
        attester=hardware.attester,
        code_bundle=code_bundle,
        trust=replace(
            hardware.trust,
            configuration=2 if passed else 32,
            executables=2 if passed else 33,
            instance_identity=pinned,
        ),
        checks=checks,
        measurements={
            **hardware.measurements,
            **{f"pcr{number}": raw for number, raw in guest.values.items()},
            **clock_measurements(guest.quote.clock),
        },
        events=body.events,
        notes=(*hardware.notes, *_notes(guest)),
    )


def _examine_snp(
    body: AzureBody, hcl: HclReport, basis: AppraisalBasis, roots: Mapping[str, Digest]
) -> Hardware:
    references = require_references(basis.references.snp, "SEV-SNP")
    _require_no_other("td_quote", body.td_quote)
    verdict = verify_report(hcl.hardware, body.certificates, basis, roots)
    report = verdict.report
    _require_over(report.report_data, hcl.digest)
    if report.vmpl != 0:
        raise EvidenceError(
            "the report was not requested by the paravisor",
            why=(
                f"it was requested at privilege level (VMPL) {report.vmpl}; the "
                "paravisor has level 0"
            ),
            code="azure-vmpl",
        )
    checks = (
        *snp.check_guest(report, hcl.digest, references),
        *snp.check_chip(verdict, basis, references),
    )
    return Hardware(
        attester=snp.attester_of(verdict),
        checks=checks,
        trust=snp.trust_of(verdict, references, checks),
        measurements=snp.measurements(report),
        notes=tuple(snp.notes_of(verdict, references)),
    )


def _examine_tdx(
    body: AzureBody, hcl: HclReport, basis: AppraisalBasis, roots: tuple[Digest, ...]
) -> Hardware:
    references = require_references(basis.references.tdx, "TDX")
    _require_no_other("certificates", body.certificates)
    report, verdict = tdx.verify_guest(body.td_quote, basis, roots)
    _require_over(report.report_data, hcl.digest)
    # The paravisor extends no register: the virtual TPM has those of the guest.
    last = report.rtmr[3]
    checks = (
        *tdx.check_report(report, hcl.digest, references),
        check(not any(last), "RTMR 3", "untouched", last.hex(), "tdx-rtmr"),
        *tdx.check_platform(verdict, basis, references),
    )
    return Hardware(
        attester=f"ppid:{verdict.platform.ppid.hex()}",
        checks=checks,
        trust=tdx.trust_of(report, verdict, references, passed=True),
        measurements=tdx.measurements(report),
        notes=(f"platform TCB {verdict.status}",),
    )


def _require_no_other(field: str, part: Sequence[object]) -> None:
    if part:
        raise MalformedError("a part belongs to another kind of hardware", field=field)


def _require_over(report_data: bytes, digest: bytes) -> None:
    """The hardware vouches for these claims, so for the keys that they name."""
    if report_data != digest.ljust(len(report_data), b"\0"):
        raise EvidenceError(
            "the hardware's report does not cover the paravisor's claims",
            why="its report data is not the digest of these claims",
            code="azure-claims",
        )


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
        raise MalformedError(
            f"the quote does not cover the {references.bank} registers", field="pcrs"
        )
    return _Guest(body, claims, quote, values[references.bank], references)


def _check_guest(guest: _Guest, bound: bytes | None) -> Iterator[AppraisalCheck]:
    body, claims, tpm = guest.body, guest.claims, guest.tpm
    yield check_bound(guest.quote.extra, bound, "qualifying data of the quote")
    if any(claims.user_data):  # what a guest asked to include is of this handshake
        yield check_bound(
            claims.user_data, bound, "user data of the paravisor's report"
        )
    yield check_clock(guest.quote.clock)
    if tpm.endorsement_keys:
        key = claims.endorsement_key
        found = Digest.of(key.to_spki()) if key else None
        yield check(
            found in tpm.endorsement_keys,
            "endorsement key of the virtual TPM",
            " or ".join(each.to_text() for each in tpm.endorsement_keys),
            found.to_text() if found else "none",
            "azure-endorsement-key",
        )
    yield from check_registers(guest.values, tpm)
    if body.event_log:
        yield from check_boot(guest.values, body.event_log, tpm)
    yield check_runtime(guest.values, body.events, tpm)
    yield check(
        tpm.ima is None,
        "IMA list",
        "a list of allowed programs" if tpm.ima else "none",
        "none: this kind of evidence cannot contain one",
        "azure-ima",
    )


def _notes(guest: _Guest) -> Iterator[str]:
    yield "Azure's paravisor is trusted: it can read all memory and it holds the TPM"
    if guest.claims.vm_id:
        yield f"virtual machine {guest.claims.vm_id}"
    if guest.claims.user_data == bytes(USER_DATA_BYTES):
        yield "only the quote is fresh; the hardware's report may be older"
    if guest.claims.console:
        yield "the serial console is enabled"
    if not guest.claims.secure_boot:
        yield "secure boot is off"
    if not guest.body.event_log:
        yield "there is no event log: registers are compared, but not explained"
    if not guest.tpm.endorsement_keys:
        yield "any guest with these measurements may have answered"
