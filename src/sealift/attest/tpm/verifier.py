"""Verifies TPM evidence: a quote, whose TPM made it, and what its registers say.

Order: the key may sign nothing but quotes, its TPM is one that a root vouches for, a
party found the key in that TPM, the key signed, the registers are the quoted ones. Then
everything is compared with the references. Source: spec/evidence-tpm.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from sealift.attest.evidence import Evidence
from sealift.attest.level import Level, TrustVector
from sealift.attest.reference import AppraisalBasis, TpmReferences, require_references
from sealift.attest.runtimelog import RuntimeEvent, measured_bundle, replay
from sealift.attest.tpm.enrolment import EnrolledTpm, check_pinned, find_owner
from sealift.attest.tpm.eventlog import parse
from sealift.attest.tpm.evidence import (
    ClockInfo,
    TpmBody,
    TpmQuote,
    check_same_boot,
    clock_measurements,
    parse_quote,
    parse_signature,
    verify_signature,
    verify_values,
)
from sealift.attest.tpm.ima import REGISTER, ImaState, advance, parse_list
from sealift.attest.tpm.structures import Public, parse_public, require_attestation_key
from sealift.attest.verifier import (
    AppraisalCheck,
    Claims,
    all_but_freshness,
    check,
    check_among,
    check_bound,
    check_code_bundle,
)
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
_WHOSE_MEMORY: Final = (
    "whoever controls the machine, or its hypervisor, can read its memory"
)


@dataclass(frozen=True, slots=True)
class _Genuine:
    """What signatures cover: all of it may be compared, none of it was yet."""

    body: TpmBody
    key: Public
    quote: TpmQuote
    values: dict[int, bytes]
    owner: EnrolledTpm

    @property
    def attester(self) -> str:
        return f"tpm:{self.key.name.hex()}"


def examine_tpm(
    evidence: Evidence, basis: AppraisalBasis, earlier: Claims | None = None
) -> Claims:
    """Verify a TPM's quote; compare registers and logs with the references.

    Args:
        evidence: Of one host.
        basis: What it is judged by.
        earlier: What the evidence amounted to that this one continues, if any.

    Raises:
        EvidenceError: also ``tpm-other-attester``.
    """
    tpm = require_references(basis.references.tpm, "TPM evidence")
    genuine = _verify(evidence, basis, tpm)
    if earlier is None:
        return _judge(genuine, basis, tpm, ImaState.at_boot(tpm.bank), ())
    state = earlier.progress
    if not isinstance(state, ImaState) or earlier.attester != genuine.attester:
        raise EvidenceError(
            "the evidence continues that of another attester",
            code="tpm-other-attester",
        )
    clock = clock_measurements(genuine.quote.clock)
    same_boot = check_same_boot(earlier.measurements, clock)
    return _judge(genuine, basis, tpm, state, (same_boot,))


def _verify(evidence: Evidence, basis: AppraisalBasis, tpm: TpmReferences) -> _Genuine:
    body = TpmBody.parse(evidence.body)
    key, quote = parse_public(body.attestation_key), parse_quote(body.quote)
    signature, values = parse_signature(body.signature), body.registers()
    scheme = require_attestation_key(key)
    owner = find_owner(body.certificates, body.enrolments, key.name, basis, tpm)
    verify_signature(quote, signature, key)
    verify_values(quote, values, scheme.hash)
    if tpm.bank not in values:
        raise MalformedError(
            f"the quote does not cover the {tpm.bank} registers", field="pcrs"
        )
    return _Genuine(body, key, quote, values[tpm.bank], owner)


def _judge(
    genuine: _Genuine,
    basis: AppraisalBasis,
    tpm: TpmReferences,
    state: ImaState,
    first: tuple[AppraisalCheck, ...],
) -> Claims:
    body, quote, owner = genuine.body, genuine.quote, genuine.owner
    code_bundle = measured_bundle(body.events)
    progress, ima_checks = check_list(
        body.ima_list, body.ima_from, genuine.values, tpm, state
    )
    checks = (
        *first,
        check_bound(quote.extra, basis.bound, "qualifying data"),
        check_pinned(genuine.owner, tpm),
        check_clock(quote.clock),
        *check_registers(genuine.values, tpm),
        *check_boot(genuine.values, body.event_log, tpm),
        check_runtime(genuine.values, body.events, tpm),
        *ima_checks,
        check_code_bundle(code_bundle, basis.references.code_bundle),
    )
    passed = all_but_freshness(checks)
    return Claims(
        level=owner.level,
        rehearsing=Level.ATTESTED_HOST if owner.is_software else None,
        attester=genuine.attester,
        code_bundle=code_bundle,
        # AR4SI: 2 genuine or as agreed, 32 with weaknesses, 33 and 96 not to rely on.
        trust=TrustVector(
            instance_identity=2 if passed else 0,
            executables=2 if passed else 33,
            hardware=32 if owner.is_software else 2,
            runtime_opaque=96,
        ),
        checks=checks,
        measurements={
            **{f"pcr{number}": raw for number, raw in genuine.values.items()},
            **clock_measurements(quote.clock),
        },
        events=body.events,
        progress=progress,
        notes=tuple(_notes(owner)),
    )


def _notes(owner: EnrolledTpm) -> Iterator[str]:
    yield f"{owner.root.name} certified the TPM"
    yield f"{owner.enrolment.enroller} enrolled the key"
    if owner.is_software:
        yield "a software TPM protects data from nobody"
        return
    yield _WHOSE_MEMORY
    if owner.root.operator == "virtual":
        yield f"{owner.root.name} is trusted as well"


# What quoted registers say. Each takes values that a signature already covers.


def check_clock(clock: ClockInfo) -> AppraisalCheck:
    """The TPM vouches that its clock was not turned back."""
    found = "safe" if clock.safe else "perhaps set back by a hard power-off"
    return check(
        clock.safe, "TPM clock", "safe", found, "tpm-clock-unsafe", refusal="stale"
    )


def check_registers(
    values: Mapping[int, bytes], references: TpmReferences
) -> Iterator[AppraisalCheck]:
    """Each register that the references must or do name has one of their values.

    Those of some loaders only (12, 13) need not be named where nothing extended them.
    """
    pcrs = references.pcrs
    if not all(name.isdecimal() and len(name) < 3 for name in pcrs):
        raise MalformedError(
            "the value is not the number of a register", field="references.tpm.pcrs"
        )
    untouched = bytes(digest_bytes(references.bank))
    allowed: dict[int, tuple[bytes, ...]]
    allowed = {n: (untouched,) for n in LOADER_PCRS if n != references.register}
    allowed |= {int(name): accepted for name, accepted in pcrs.items()}
    for number in sorted({*allowed, *REQUIRED_PCRS}):
        found = values.get(number, b"")
        accepted = allowed.get(number, ())
        yield check_among(found, accepted, f"PCR {number}", code="tpm-pcr")


def check_boot(
    values: Mapping[int, bytes], event_log: bytes, references: TpmReferences
) -> Iterator[AppraisalCheck]:
    """The log explains every register that only firmware and boot loaders extend.

    Raises:
        MalformedError: if it does not parse, or lacks the bank.
    """
    replayed = parse(event_log).replay(references.bank) if event_log else {}
    for number in (each for each in BOOT_PCRS if each in values):
        found = replayed.get(number, bytes(digest_bytes(references.bank)))
        yield check(
            values[number] == found,
            f"event log of PCR {number}",
            values[number].hex(),
            found.hex(),
            "tpm-event-log",
            refusal="evidence",
        )


def check_runtime(
    values: Mapping[int, bytes],
    events: tuple[RuntimeEvent, ...],
    references: TpmReferences,
) -> AppraisalCheck:
    """The runtime log explains its register, which software cannot reset (rule M7).

    All of it, from zeros: were the event log believed about this register, whoever sends
    it could hide the first events there (another code bundle) as the firmware's.
    """
    number, bank = references.register, references.bank
    if number in RESETTABLE_PCRS:
        raise MalformedError(
            f"PCR {number} cannot be used for the runtime log",
            why="software can reset it",
            field="register",
        )
    found = replay(events, bank, bytes(digest_bytes(bank)))
    return check(
        values.get(number) == found,
        f"runtime log of PCR {number}",
        values.get(number, b"").hex() or "a quoted register",
        found.hex(),
        "tpm-runtime-log",
        refusal="evidence",
    )


def check_list(
    ima_list: bytes,
    begin: int,
    values: Mapping[int, bytes],
    references: TpmReferences,
    state: ImaState,
) -> tuple[ImaState, tuple[AppraisalCheck, ...]]:
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
    quoted, expected = values.get(REGISTER), f"entries from number {state.count}"
    if references.ima is None:
        expected = "no host: the references do not name what may run"
    if references.ima is None or quoted is None or begin > state.count:
        found = f"entries from number {begin}" if quoted else "PCR 10 is not quoted"
        return state, (check(False, "IMA list", expected, found, "tpm-ima-list"),)
    entries = parse_list(ima_list).behind(state.count - begin)
    return advance(state, entries, quoted, references.ima, pcrs=values)
