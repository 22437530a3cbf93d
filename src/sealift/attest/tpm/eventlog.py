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

from sealift.attest.tpm.structures import HASHES
from sealift.crypto.hash import HashName, digest, digest_bytes
from sealift.errors import MalformedError

MAX_LOG_BYTES: Final = 4 << 20
MAX_EVENTS: Final = 16_384
MAXHASHES: Final = 8

EV_NO_ACTION: Final = 0x3
_SPEC_ID_03: Final = b"Spec ID Event03\0"
_SPEC_ID_OLDER: Final = (b"Spec ID Event00\0", b"Spec ID Event02\0")
_STARTUP_LOCALITY: Final = b"StartupLocality\0"
_LOCALITIES: Final = frozenset({0, 3, 4})
_PCRS: Final = frozenset(range(17)) | {23}  # 17 to 22 begin with a dynamic launch
_LEGACY: Final = struct.Struct("<II20sI")
_AGILE: Final = struct.Struct("<III")
_SPEC_ID: Final = struct.Struct("<16sIBBBBI")


@dataclass(frozen=True, slots=True)
class Event:
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
    events: tuple[Event, ...]
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
                why=f"it has {', '.join(self.banks) or 'none that is known'}",
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
        found = 0
        seen = False
        for event in self.events:
            if event.extends:
                seen = seen or event.register == 0
            elif event.content.startswith(_STARTUP_LOCALITY):
                found = _locality(event, too_late=seen)
                seen = True
        return found


def rtmrs(log: EventLog) -> dict[int, bytes]:
    """The runtime measurement registers after a CC log, by number from 0, SHA-384.

    Raises:
        MalformedError: if the log has no SHA-384, or claims to extend MRTD or a
            register above RTMR3.
    """
    values = log.replay("sha384")
    if not values.keys() <= {1, 2, 3, 4}:
        raise MalformedError(
            "the event log extends a register that is no RTMR",
            field="register",
            code="eventlog-register",
        )
    return {index - 1: value for index, value in values.items()}


def covered(event: Event, bank: HashName) -> bytes | None:
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
        raise _malformed(f"{len(raw)} bytes", MAX_LOG_BYTES)
    first, end = _legacy_event(raw, 0)
    sizes = _spec_id(first)
    if sizes is None:
        return _events(raw, 0, ("sha1",), {})
    known = tuple(HASHES[each] for each in sizes if each in HASHES)
    return _events(raw, end, known, sizes)


def _events(
    raw: bytes, at: int, banks: tuple[HashName, ...], sizes: Mapping[int, int]
) -> EventLog:
    events: list[Event] = []
    # A rest of one byte over and over is padding: no event looks like that, its digest
    # count would be zero or 2 ** 32 - 1. Looked for once, not at every event.
    padded = {byte: len(raw.rstrip(bytes((byte,)))) for byte in (0x00, 0xFF)}
    while at < len(raw) and at < padded.get(raw[at], len(raw)):
        if len(events) == MAX_EVENTS:
            raise _malformed(f"more than {MAX_EVENTS} events", at)
        event, at = _agile_event(raw, at, sizes) if sizes else _legacy_event(raw, at)
        _check_register(event)
        events.append(event)
    return EventLog(banks, tuple(events), len(raw) - at)


def _legacy_event(raw: bytes, at: int) -> tuple[Event, int]:
    if len(raw) - at < _LEGACY.size:
        raise _malformed("an event is cut off", at)
    register, kind, sha1, size = _LEGACY.unpack_from(raw, at)
    content, end = _take(raw, at + _LEGACY.size, size)
    return Event(at, register, kind, {"sha1": sha1}, content), end


def _agile_event(raw: bytes, at: int, sizes: Mapping[int, int]) -> tuple[Event, int]:
    head, cursor = _take(raw, at, _AGILE.size)
    register, kind, count = _AGILE.unpack(head)
    if count != len(sizes):
        raise _malformed(f"an event with {count} digests, not {len(sizes)}", at)
    found: dict[int, bytes] = {}
    for _ in range(count):
        name, cursor = _number(raw, cursor, 2)
        if name in found or name not in sizes:
            raise _malformed(f"a digest of algorithm 0x{name:04x}", cursor)
        found[name], cursor = _take(raw, cursor, sizes[name])
    size, cursor = _number(raw, cursor, 4)
    content, cursor = _take(raw, cursor, size)
    digests = {HASHES[name]: each for name, each in found.items() if name in HASHES}
    return Event(at, register, kind, digests, content), cursor


def _spec_id(first: Event) -> dict[int, int] | None:
    """Digest lengths by algorithm id that a crypto-agile log declares, else None."""
    content = first.content
    if first.extends or content.startswith(_SPEC_ID_OLDER):
        return None
    if not content.startswith(_SPEC_ID_03) or any(first.digests["sha1"]):
        raise _malformed("it begins with no Spec ID event", 0)
    head, cursor = _take(content, 0, _SPEC_ID.size)
    count = _SPEC_ID.unpack(head)[-1]
    if not 0 < count <= MAXHASHES:
        raise _malformed(f"{count} algorithms", 0)
    sizes = {}
    for _ in range(count):
        name, cursor = _number(content, cursor, 2)
        sizes[name], cursor = _number(content, cursor, 2)
        _check_size(name, sizes[name])
    vendor, cursor = _number(content, cursor, 1)
    if len(sizes) != count or cursor + vendor != len(content):
        raise _malformed("a Spec ID event that does not fit its own numbers", 0)
    return sizes


def _check_size(name: int, size: int) -> None:
    known = HASHES.get(name)
    if not 0 < size <= 128 or (known and digest_bytes(known) != size):
        raise _malformed(f"digests of {size} bytes for algorithm 0x{name:04x}", 0)


def _check_register(event: Event) -> None:
    if event.extends and event.register not in _PCRS:
        raise MalformedError(
            f"the event log extends register {event.register}",
            why="only PCR 0 to 16 and 23, or the registers of a TD, are reset at boot",
            offset=event.offset,
            code="eventlog-register",
        )


def _locality(event: Event, *, too_late: bool) -> int:
    locality = event.content[len(_STARTUP_LOCALITY) :]
    if too_late or len(locality) != 1 or locality[0] not in _LOCALITIES:
        raise _malformed("a startup locality that cannot be", event.offset)
    return locality[0]


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


def _take(raw: bytes, at: int, size: int) -> tuple[bytes, int]:
    if size > len(raw) - at:
        raise _malformed(f"{size} bytes are named, {len(raw) - at} are left", at)
    return raw[at : at + size], at + size


def _number(raw: bytes, at: int, size: int) -> tuple[int, int]:
    taken, end = _take(raw, at, size)
    return int.from_bytes(taken, "little"), end


def _malformed(what: str, offset: int) -> MalformedError:
    return MalformedError(
        "not a boot event log", why=what, offset=offset, code="eventlog-malformed"
    )
