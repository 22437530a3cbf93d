"""Verifies Azure evidence: hardware, the paravisor's claims, the virtual TPM's quote.

Hardware vouches for the digest of the claims, the claims name the key, the key signs the
quote, the quote carries the bound value and the registers. Source: spec/evidence-azure.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sealift.attest.anchors import AMD_ARKS, INTEL_SGX_ROOTS
from sealift.attest.azure.evidence import MEDIA_TYPE, AzureBody, parse_body
from sealift.attest.azure.hardware import (
    AzureTrust,
    Hardware,
    examine_hardware,
)
from sealift.attest.azure.hcl import (
    USER_DATA_BYTES,
    RuntimeClaims,
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
from sealift.attest.collateral import Collateral
from sealift.attest.evidence import Evidence
from sealift.attest.level import Level
from sealift.attest.reference import ReferenceValues, no_references
from sealift.attest.runtimelog import measured_bundle
from sealift.attest.tpm.evidence import clock_measurements
from sealift.attest.tpm.public import Scheme
from sealift.attest.tpm.quote import (
    Quote,
    parse_quote,
    parse_signature,
    verify_values,
)
from sealift.attest.tpm.references import TpmReferences
from sealift.attest.tpm.state import (
    check_boot,
    check_clock,
    check_registers,
    check_runtime,
    replay_boot,
)
from sealift.attest.trust import TrustVector
from sealift.attest.verifier import Claims
from sealift.errors import AuthenticationError, EvidenceError, MalformedError
from sealift.ids import Digest

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
