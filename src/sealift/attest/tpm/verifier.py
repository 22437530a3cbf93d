"""Verifies TPM evidence: a quote, whose TPM made it, and what its registers say.

Order: the key may sign nothing but quotes, its TPM is one that a root vouches for, a
party found the key in that TPM, the key signed, the registers are the quoted ones. Then
everything is compared with the references. Source: spec/evidence-tpm.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sealift.attest.check import (
    Check,
    all_but_freshness,
    check,
    check_among,
    check_bound,
    check_code_bundle,
)
from sealift.attest.collateral import Collateral
from sealift.attest.evidence import Evidence
from sealift.attest.level import Level, TrustVector
from sealift.attest.reference import ReferenceValues, no_references
from sealift.attest.runtimelog import RuntimeEvent, measured_bundle, replay
from sealift.attest.tpm import eventlog as tcglog
from sealift.attest.tpm.enrolment import Owner, check_pinned, find_owner
from sealift.attest.tpm.evidence import (
    MEDIA_TYPE,
    ClockInfo,
    Quote,
    TpmBody,
    check_same_boot,
    clock_measurements,
    parse_body,
    parse_quote,
    parse_signature,
    verify_signature,
    verify_values,
)
from sealift.attest.tpm.ima import ImaState, advance
from sealift.attest.tpm.imalist import REGISTER, MeasurementList, parse_list
from sealift.attest.tpm.references import TpmReferences
from sealift.attest.tpm.structures import Public, parse_public, require_attestation_key
from sealift.attest.verifier import Claims
from sealift.crypto.hash import digest_bytes
from sealift.errors import EvidenceError, MalformedError

# Only the firmware and what it starts extend these; later software has the others.
BOOT_PCRS: Final = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 14)
# Code and policy of firmware, boot loader, kernel, its command line and first files. With
# one of them open, whatever booted could have switched measuring off.
REQUIRED_PCRS: Final = (0, 2, 4, 7, 8, 9)
# Where systemd's loaders measure a command line, credentials and extensions from beside
# the kernel's image (UAPI group, Linux TPM PCR registry); untouched by other loaders.
LOADER_PCRS: Final = (12, 13)
RESETTABLE_PCRS: Final = frozenset({16, 20, 21, 22, 23})


def check_clock(clock: ClockInfo) -> Check:
    """The TPM vouches that its clock was not turned back."""
    return check(
        clock.safe,
        "TPM clock",
        expected="safe",
        found="safe" if clock.safe else "perhaps turned back by a hard power-off",
        code="tpm-clock-unsafe",
        refusal="stale",
    )


def check_registers(
    values: Mapping[int, bytes], references: TpmReferences
) -> tuple[Check, ...]:
    """Each register that the references must or do name has one of their values.

    Those of some loaders only (12, 13) need not be named where nothing extended them.
    """
    untouched = (bytes(digest_bytes(references.bank)),)
    elsewhere = {n: untouched for n in LOADER_PCRS if n != references.register}
    allowed = {**elsewhere, **_numbered(references.pcrs)}
    return tuple(
        check_among(
            values.get(number, b""),
            allowed.get(number, ()),
            f"PCR {number}",
            code="tpm-pcr",
        )
        for number in sorted({*allowed, *REQUIRED_PCRS})
    )


def replay_boot(event_log: bytes, references: TpmReferences) -> dict[int, bytes]:
    """Registers after the firmware's log; nothing if there is no log.

    Raises:
        MalformedError: if it does not parse, or lacks the bank.
    """
    if not event_log:
        return {}
    return tcglog.parse(event_log).replay(references.bank)


def check_boot(
    values: Mapping[int, bytes],
    replayed: Mapping[int, bytes],
    references: TpmReferences,
) -> tuple[Check, ...]:
    """The log explains every register that only firmware and boot loaders extend."""
    untouched = bytes(digest_bytes(references.bank))
    return tuple(
        check(
            values[number] == replayed.get(number, untouched),
            f"event log of PCR {number}",
            expected=values[number].hex(),
            found=replayed.get(number, untouched).hex(),
            code="tpm-event-log",
            refusal="evidence",
        )
        for number in BOOT_PCRS
        if number in values
    )


def check_runtime(
    values: Mapping[int, bytes],
    events: tuple[RuntimeEvent, ...],
    references: TpmReferences,
) -> Check:
    """The runtime log explains its register, which software cannot reset (rule M7).

    All of it, from zeros: were the event log believed about this register, whoever sends
    it could hide the first events there (another code bundle) as the firmware's.
    """
    number, bank = references.register, references.bank
    if number in RESETTABLE_PCRS:
        raise MalformedError(
            f"PCR {number} cannot carry the runtime log",
            why="software can reset it",
            field="register",
        )
    found = replay(events, bank, bytes(digest_bytes(bank)))
    return check(
        values.get(number) == found,
        f"runtime log of PCR {number}",
        expected=values.get(number, b"").hex() or "a quoted register",
        found=found.hex(),
        code="tpm-runtime-log",
        refusal="evidence",
    )


def check_list(
    ima_list: bytes,
    begin: int,
    values: Mapping[int, bytes],
    references: TpmReferences,
    state: ImaState,
) -> tuple[ImaState, tuple[Check, ...]]:
    """The kernel's list explains PCR 10, and names nothing that may not run.

    Args:
        ima_list: Its entries from number ``begin`` on.
        begin: At most ``state.count``, or there is a gap.
        values: The quoted registers.
        references: What may run.
        state: How far the list was judged before.

    Raises:
        MalformedError: if the list does not parse.
    """
    quoted = values.get(REGISTER)
    if references.ima is None or quoted is None or begin > state.count:
        return state, (_no_list(references, quoted, begin, state),)
    entries = _behind(parse_list(ima_list), state.count - begin)
    return advance(state, entries, quoted, references.ima, pcrs=values)


def _no_list(
    references: TpmReferences, quoted: bytes | None, begin: int, state: ImaState
) -> Check:
    return check(
        False,
        "IMA list",
        expected=f"entries from {state.count} on"
        if references.ima is not None
        else "no host: the references do not say what may run",
        found=f"entries from {begin} on" if quoted else "PCR 10 is not quoted",
        code="tpm-ima-list",
    )


def _behind(entries: MeasurementList, skipped: int) -> MeasurementList:
    """The entries that were not judged yet."""
    if not skipped:
        return entries
    violations = {each - skipped for each in entries.violations if each >= skipped}
    return MeasurementList(
        entries.templates[skipped:], entries.contents[skipped:], violations
    )


def _numbered(pcrs: Mapping[str, tuple[bytes, ...]]) -> dict[int, tuple[bytes, ...]]:
    if not all(name.isdecimal() and len(name) < 3 for name in pcrs):
        raise MalformedError(
            "not the number of a register", field="references.tpm.pcrs"
        )
    return {int(name): allowed for name, allowed in pcrs.items()}


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
        body.certificates,
        body.enrolments,
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
