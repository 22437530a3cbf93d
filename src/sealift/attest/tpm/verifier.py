"""Verifies TPM evidence: a quote, whose TPM made it, and what its registers say.

Order: the key may sign nothing but quotes, its TPM is one that a root vouches for, a
party found the key in that TPM, the key signed, the registers are the quoted ones. Then
everything is compared with the references. Source: spec/evidence-tpm.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sealift.attest.check import (
    Check,
    all_but_freshness,
    check_bound,
    check_code_bundle,
)
from sealift.attest.collateral import Collateral
from sealift.attest.evidence import Evidence
from sealift.attest.level import Level
from sealift.attest.reference import ReferenceValues, no_references
from sealift.attest.runtimelog import measured_bundle
from sealift.attest.tpm.evidence import (
    MEDIA_TYPE,
    TpmBody,
    check_same_boot,
    clock_measurements,
    parse_body,
)
from sealift.attest.tpm.ima import ImaState
from sealift.attest.tpm.owner import Owner, check_pinned, find_owner
from sealift.attest.tpm.public import Public, parse_public, require_attestation_key
from sealift.attest.tpm.quote import (
    Quote,
    parse_quote,
    parse_signature,
    verify_signature,
    verify_values,
)
from sealift.attest.tpm.references import TpmReferences
from sealift.attest.tpm.state import (
    check_boot,
    check_clock,
    check_list,
    check_registers,
    check_runtime,
    replay_boot,
)
from sealift.attest.trust import TrustVector
from sealift.attest.verifier import Claims
from sealift.errors import EvidenceError, MalformedError

RESULT_MEDIA_TYPE: Final = "application/eat+jwt"
# AR4SI: 2 genuine or as agreed, 32 genuine with weaknesses, 33 and 96 not to rely on.
_MEMORY_VISIBLE: Final = 96
_WHOSE_MEMORY: Final = "whoever holds the machine can read its memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Basis:
    """What evidence is judged by; the arguments of ``Verifier.examine``."""

    bound: bytes | None
    references: ReferenceValues
    collateral: Collateral
    at_s: int

    @property
    def tpm(self) -> TpmReferences:
        if self.references.tpm is None:
            raise no_references("TPM evidence")
        return self.references.tpm


@dataclass(frozen=True, slots=True)
class _Genuine:
    """What signatures cover: all of it may be compared, none of it was yet."""

    body: TpmBody
    key: Public
    quote: Quote
    values: dict[int, bytes]
    owner: Owner

    @property
    def attester(self) -> str:
        return f"tpm:{self.key.name.hex()}"


class TpmVerifier:
    """Verifies a TPM's quote; compares registers and logs with the references."""

    media_type = MEDIA_TYPE
    levels = frozenset({Level.ATTESTED_HOST, Level.DEVELOPMENT})
    result_media_type = RESULT_MEDIA_TYPE

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
        basis = _Basis(
            bound=bound, references=references, collateral=collateral, at_s=at_s
        )
        state = ImaState.at_boot(basis.tpm.bank)
        return _judge(_verify(evidence, basis), basis, state, ())

    def examine_continued(
        self,
        evidence: Evidence,
        *,
        earlier: Claims,
        bound: bytes | None,
        references: ReferenceValues,
        collateral: Collateral,
        at_s: int,
    ) -> Claims:
        """See ``ContinuingVerifier.examine_continued``.

        Raises:
            EvidenceError: also ``tpm-other-attester``.
        """
        basis = _Basis(
            bound=bound, references=references, collateral=collateral, at_s=at_s
        )
        genuine, state = _verify(evidence, basis), earlier.progress
        if not isinstance(state, ImaState) or earlier.attester != genuine.attester:
            raise EvidenceError(
                "the evidence continues that of another attester",
                code="tpm-other-attester",
            )
        clock = clock_measurements(genuine.quote.clock)
        same_boot = check_same_boot(earlier.measurements, clock)
        return _judge(genuine, basis, state, (same_boot,))


def _verify(evidence: Evidence, basis: _Basis) -> _Genuine:
    body = parse_body(evidence.body)
    key, quote = parse_public(body.attestation_key), parse_quote(body.quote)
    signature, values = parse_signature(body.signature), body.registers()
    scheme = require_attestation_key(key)
    owner = find_owner(
        body,
        key.name,
        references=basis.references,
        tpm=basis.tpm,
        collateral=basis.collateral,
        at_s=basis.at_s,
    )
    verify_signature(quote, signature, key)
    verify_values(quote, values, scheme.hash)
    bank = basis.tpm.bank
    if bank not in values:
        raise MalformedError(f"no {bank} registers are quoted", field="pcrs")
    return _Genuine(body, key, quote, values[bank], owner)


def _judge(
    genuine: _Genuine, basis: _Basis, state: ImaState, first: tuple[Check, ...]
) -> Claims:
    body, owner = genuine.body, genuine.owner
    code_bundle = measured_bundle(body.events)
    progress, ima_checks = check_list(
        body.ima_list, body.ima_from, genuine.values, basis.tpm, state
    )
    checks = (
        *first,
        *_check_state(genuine, basis),
        *ima_checks,
        check_code_bundle(code_bundle, basis.references.code_bundle),
    )
    return Claims(
        level=owner.level,
        rehearsing=Level.ATTESTED_HOST if owner.is_software else None,
        attester=genuine.attester,
        role=None,
        code_bundle=code_bundle,
        trust=_trust(owner, checks),
        checks=checks,
        measurements=_measurements(genuine),
        events=body.events,
        progress=progress,
        notes=_notes(owner),
    )


def _check_state(genuine: _Genuine, basis: _Basis) -> tuple[Check, ...]:
    body, quote, tpm = genuine.body, genuine.quote, basis.tpm
    replayed = replay_boot(body.event_log, tpm)
    return (
        check_bound(quote.extra, basis.bound, "qualifying data"),
        check_pinned(genuine.owner, tpm),
        check_clock(quote.clock),
        *check_registers(genuine.values, tpm),
        *check_boot(genuine.values, replayed, tpm),
        check_runtime(genuine.values, body.events, tpm),
    )


def _measurements(genuine: _Genuine) -> dict[str, bytes]:
    values = {f"pcr{number}": raw for number, raw in genuine.values.items()}
    return {**values, **clock_measurements(genuine.quote.clock)}


def _trust(owner: Owner, checks: tuple[Check, ...]) -> TrustVector:
    passed = all_but_freshness(checks)
    return TrustVector(
        instance_identity=2 if passed else 0,
        executables=2 if passed else 33,
        hardware=32 if owner.is_software else 2,
        runtime_opaque=_MEMORY_VISIBLE,
    )


def _notes(owner: Owner) -> tuple[str, ...]:
    enroller = f"the key was enrolled by {owner.enrolment.enroller}"
    root = f"the TPM is vouched for by {owner.root.name}"
    if owner.is_software:
        return (root, enroller, "a software TPM: nobody is kept out")
    if owner.root.operator == "virtual":
        return (root, enroller, _WHOSE_MEMORY, f"{owner.root.name} is trusted as well")
    return (root, enroller, _WHOSE_MEMORY)
