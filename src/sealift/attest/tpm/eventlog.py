"""Boot event logs: TCG PC Client (SHA-1 and crypto-agile) and CC event logs (CCEL).

A log only says what went into registers. ``replay`` gives the values that the registers
must then have; nothing in a log counts before a quote confirms them, and even then only
what a digest covers: ``covered`` says which bytes of an event that is. An event's type
is covered by nothing (spec/evidence-logs.md lists all such bytes).

Source: TCG PC Client Platform Firmware Profile 1.06, section 10 (layout, events);
UEFI 2.10 section 38.4 (CC measurement registers).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sealift.attest.binary import Cursor
from sealift.attest.tpm.structures import HASHES
from sealift.crypto.hash import HashName, digest, digest_bytes
from sealift.errors import MalformedError

MAX_LOG_BYTES: Final = 4 << 20
MAX_EVENTS: Final = 16_384
MAX_ALGORITHMS: Final = 8

EV_NO_ACTION: Final = 0x3
_SPEC_ID_03: Final = b"Spec ID Event03\0"
_SPEC_ID_OLDER: Final = (b"Spec ID Event00\0", b"Spec ID Event02\0")
_STARTUP_LOCALITY: Final = b"StartupLocality\0"
_LOCALITIES: Final = (b"\0", b"\3", b"\4")
_PCRS: Final = frozenset(range(17)) | {23}  # 17 to 22 begin with a dynamic launch
_LEGACY: Final = struct.Struct("<II20sI")
_AGILE: Final = struct.Struct("<III")
_SPEC_ID: Final = struct.Struct("<16sIBBBBI")


@dataclass(frozen=True, slots=True)
class MeasuredEvent:
    """One event as the log has it; only ``register`` and ``digests`` can be replayed.

    Attributes:
        offset: Where it begins in the log, in bytes.
        register: PCR, or measurement register index of a CC log (RTMR + 1).
        kind: The event type, as number; nothing covers it.
        digests: What the register of each bank was extended with.
        content: The event data; see ``covered``.
    """

    offset: int
    register: int
    kind: int
    digests: Mapping[HashName, bytes]
    content: bytes

    @property
    def extends(self) -> bool:
        """Whether it went into its register: EV_NO_ACTION did not."""
        return self.kind != EV_NO_ACTION


@dataclass(frozen=True, slots=True)
class EventLog:
    """A log, in order.

    Attributes:
        banks: The algorithms that every event has a digest of.
        events: Every event behind the Spec ID header.
        padding: Bytes behind the last event, all 0x00 or all 0xff (ACPI buffers).
    """

    banks: tuple[HashName, ...]
    events: tuple[MeasuredEvent, ...]
    padding: int

    def replay(self, bank: HashName) -> dict[int, bytes]:
        """The value of each register that the log extends, by number.

        Others are not in it, and begin with zeros. PCR 0 begins with the locality that
        the log names.

        Raises:
            MalformedError: for a bank the log does not have, a register that is not
                reset at boot, or a startup locality that cannot be.
        """
        if bank not in self.banks:
            raise MalformedError(
                f"the event log has no {bank} digests",
                why=f"it has {', '.join(self.banks) or 'no known digests'}",
                code="eventlog-bank",
            )
        size = digest_bytes(bank)
        locality = self.startup_locality()
        registers = {0: locality.to_bytes(size)}
        touched = {0} if locality else set()
        for event in self.events:
            if event.extends:
                before = registers.get(event.register, bytes(size))
                touched.add(event.register)
                registers[event.register] = digest(bank, before, event.digests[bank])
        return {number: registers[number] for number in sorted(touched)}

    def startup_locality(self) -> int:
        """The locality that PCR 0 begins with: 0, 3 or 4.

        Raises:
            MalformedError: if it is named twice, too late, or is another.
        """
        found, seen = b"\0", False
        for event in self.events:
            if event.extends:
                seen = seen or event.register == 0
            elif event.content.startswith(_STARTUP_LOCALITY):
                found = event.content.removeprefix(_STARTUP_LOCALITY)
                if seen or found not in _LOCALITIES:
                    raise _malformed("the startup locality is not valid", event.offset)
                seen = True
        return found[0]


def rtmrs(log: EventLog) -> dict[int, bytes]:
    """The runtime measurement registers after a CC log, by number from 0, SHA-384.

    Raises:
        MalformedError: if the log has no SHA-384, or claims to extend MRTD or a
            register above RTMR3.
    """
    values = log.replay("sha384")
    if not values.keys() <= {1, 2, 3, 4}:
        raise MalformedError(
            "the event log extends a register that is not an RTMR",
            field="register",
            code="eventlog-register",
        )
    return {index - 1: value for index, value in values.items()}


def covered(event: MeasuredEvent, bank: HashName) -> bytes | None:
    """The bytes of the event's data whose digest was extended, or None.

    None means that the data only describes what was measured (a file's path beside the
    file's digest), so it proves nothing. Which bytes are hashed depends on who measured:
    all of the data, it without its last zero or stray byte (GRUB), what follows
    ``grub_cmd:`` and the like, or a UEFI variable's value.
    """
    if not event.extends or bank not in event.digests:
        return None
    wanted = event.digests[bank]
    return next(
        (each for each in _candidates(event.content) if digest(bank, each) == wanted),
        None,
    )


def parse(raw: bytes) -> EventLog:
    """The log of ``binary_bios_measurements``, a CCEL or WBCL buffer.

    Raises:
        MalformedError: ``eventlog-malformed`` for anything else, too much of it, or
            bytes behind the last event that are not padding.
    """
    if len(raw) > MAX_LOG_BYTES:
        raise _malformed(f"it has {len(raw)} bytes", MAX_LOG_BYTES)
    cursor = _LogCursor(raw, "boot event log")
    sizes = _spec_id(_legacy_event(cursor))
    if sizes is None:
        cursor.offset = 0
        return _events(cursor, ("sha1",), {})
    known = tuple(HASHES[each] for each in sizes if each in HASHES)
    return _events(cursor, known, sizes)


class _LogCursor(Cursor):
    __slots__ = ()

    def malformed(self, why: str) -> MalformedError:
        return _malformed(why, self.offset)


def _events(
    cursor: Cursor, banks: tuple[HashName, ...], sizes: Mapping[int, int]
) -> EventLog:
    events: list[MeasuredEvent] = []
    raw = cursor.raw
    # A rest of one byte over and over is padding: no event looks like that, its digest
    # count would be zero or 2 ** 32 - 1. Looked for once, not at every event.
    padded = {byte: len(raw.rstrip(bytes((byte,)))) for byte in (0x00, 0xFF)}
    while (at := cursor.offset) < len(raw) and at < padded.get(raw[at], len(raw)):
        if len(events) == MAX_EVENTS:
            raise _malformed(f"it has more than {MAX_EVENTS} events", at)
        event = _agile_event(cursor, sizes) if sizes else _legacy_event(cursor)
        if event.extends and event.register not in _PCRS:
            raise MalformedError(
                f"the event log extends register {event.register}",
                why=(
                    "only PCR 0 to 16 and 23, or the registers of a TD, are reset at "
                    "boot"
                ),
                offset=at,
                code="eventlog-register",
            )
        events.append(event)
    return EventLog(banks, tuple(events), len(raw) - at)


def _legacy_event(cursor: Cursor) -> MeasuredEvent:
    at = cursor.offset
    register, kind, sha1, size = cursor.unpack(_LEGACY)
    return MeasuredEvent(at, register, kind, {"sha1": sha1}, cursor.take(size))


def _agile_event(cursor: Cursor, sizes: Mapping[int, int]) -> MeasuredEvent:
    at = cursor.offset
    register, kind, count = cursor.unpack(_AGILE)
    if count != len(sizes):
        raise _malformed(
            f"an event has {count} digests; {len(sizes)} were expected", at
        )
    found: dict[int, bytes] = {}
    for _ in range(count):
        name = cursor.number(2)
        if name in found or name not in sizes:
            raise cursor.malformed(f"a digest of algorithm 0x{name:04x}")
        found[name] = cursor.take(sizes[name])
    digests = {HASHES[name]: each for name, each in found.items() if name in HASHES}
    return MeasuredEvent(at, register, kind, digests, cursor.take(cursor.number(4)))


def _spec_id(first: MeasuredEvent) -> dict[int, int] | None:
    """Digest lengths by algorithm id that a crypto-agile log declares, else None."""
    content = first.content
    if first.extends or content.startswith(_SPEC_ID_OLDER):
        return None
    if not content.startswith(_SPEC_ID_03) or any(first.digests["sha1"]):
        raise _malformed("it does not begin with a Spec ID event", 0)
    cursor = _LogCursor(content, "Spec ID event")
    *_, count = cursor.unpack(_SPEC_ID)
    if not 0 < count <= MAX_ALGORITHMS:
        raise _malformed(f"it names {count} algorithms", 0)
    sizes = {}
    for _ in range(count):
        name, size = cursor.number(2), cursor.number(2)
        known = HASHES.get(name)
        if not 0 < size <= 128 or (known and digest_bytes(known) != size):
            raise _malformed(f"digests of algorithm 0x{name:04x} have {size} bytes", 0)
        sizes[name] = size
    vendor = cursor.number(1)
    if len(sizes) != count or cursor.offset + vendor != len(content):
        raise _malformed("the numbers in its Spec ID event are not consistent", 0)
    return sizes


def _candidates(content: bytes) -> list[bytes]:
    found = [content, content[:-1], content[:-2]]
    for separator in (b": ", b" "):
        _, _, behind = content.partition(separator)
        found += [behind, behind[:-1], behind[:-2]] if behind else []
    return found + _variable_value(content) + _tagged(content)


def _variable_value(content: bytes) -> list[bytes]:
    """The value inside a UEFI_VARIABLE_DATA, whose lengths must fit."""
    if len(content) < 32:
        return []
    name, value = struct.unpack_from("<QQ", content, 16)
    return [content[32 + 2 * name :]] if 32 + 2 * name + value == len(content) else []


def _tagged(content: bytes) -> list[bytes]:
    """What an EV_EVENT_TAG holds behind its tag and length."""
    if len(content) < 8:
        return []
    size = int.from_bytes(content[4:8], "little")
    return [content[8:]] if 8 + size == len(content) else []


def _malformed(what: str, offset: int) -> MalformedError:
    return MalformedError(
        "the file is not a boot event log",
        why=what,
        offset=offset,
        code="eventlog-malformed",
    )
