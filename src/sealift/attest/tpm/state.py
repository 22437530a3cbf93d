"""What quoted registers say: agreed values, what booted, what ran, what we measured.

Every function takes values that a signature already covers and returns checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sealift.attest.check import Check, check, check_among
from sealift.attest.runtimelog import RuntimeEvent, replay
from sealift.attest.tpm import eventlog as tcglog
from sealift.attest.tpm.ima import ImaState, advance
from sealift.attest.tpm.imalist import REGISTER, MeasurementList, parse_list
from sealift.attest.tpm.quote import ClockInfo
from sealift.attest.tpm.references import TpmReferences
from sealift.crypto.hash import digest_bytes
from sealift.errors import MalformedError

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
