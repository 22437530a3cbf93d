"""Platform configuration registers, and the runtime log that one of them covers.

Registers are read, extended and quoted. What a host keeps between starts is no secret:
the key is wrapped by the TPM, the rest is signed or measured. Its log is only a memory of
what was extended: after a restart the register decides whether it is of this boot.
Source: TPM 2.0 Library part 3, sections 18.4 (quote) and 22 (PCRs).
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TypeVar

from sealift import codec
from sealift.attest.evidence import MAX_BODY_BYTES
from sealift.attest.runtimelog import RuntimeEvent, event_digest, replay
from sealift.attest.tpm.client import PASSWORD, Command, TpmClient, open_link
from sealift.attest.tpm.enrolment import MAX_ENROLMENTS, SignedEnrolment
from sealift.attest.tpm.evidence import parse_quote, parse_selections
from sealift.attest.tpm.keys import LoadedKey, WrappedKey
from sealift.attest.tpm.structures import HASH_NUMBER, TpmReader, sized
from sealift.crypto.hash import HashName, digest, digest_bytes
from sealift.crypto.sign import PublicKey
from sealift.errors import MalformedError, UnavailableError, UsageError, require_value
from sealift.ids import Digest

_SELECT_BYTES: Final = 3
_ATTEMPTS: Final = 16


@dataclass(frozen=True, slots=True)
class Quoted:
    """One quote: TPMS_ATTEST, TPMT_SIGNATURE, and the values that it covers."""

    quote: bytes
    signature: bytes
    values: dict[int, bytes]


def read_registers(
    client: TpmClient, bank: HashName, pcrs: Iterable[int]
) -> dict[int, bytes]:
    """Values by number; the TPM gives at most eight at a time.

    Raises:
        UnavailableError: ``tpm-bank`` if the TPM does not keep that bank.
    """
    missing, values = sorted(set(pcrs)), dict[int, bytes]()
    while missing:
        answer = client.run(Command.PCR_READ, parameters=_selection(bank, missing))
        found = _parse_values(answer.reader("PCR values"))
        if not found.keys() & set(missing):
            raise UnavailableError(f"the TPM has no {bank} registers", code="tpm-bank")
        values.update(found)
        missing = [number for number in missing if number not in values]
    return values


def extend(client: TpmClient, pcr: int, digests: Mapping[HashName, bytes]) -> None:
    """Extend one register, in every bank that a digest is given for."""
    parts = (struct.pack(">H", HASH_NUMBER[name]) + d for name, d in digests.items())
    parameters = struct.pack(">I", len(digests)) + b"".join(parts)
    client.run(Command.PCR_EXTEND, (pcr,), parameters, sessions=(PASSWORD,))


def quote(
    client: TpmClient, key: LoadedKey, extra: bytes, bank: HashName, pcrs: Iterable[int]
) -> Quoted:
    """Quote registers, with the very values that were quoted.

    Others extend while we read, so both are repeated until they agree.

    Raises:
        UnavailableError: ``tpm-restless``.
    """
    numbers = sorted(set(pcrs))
    for _ in range(_ATTEMPTS):
        values = read_registers(client, bank, numbers)
        raw, signature = _quote_once(client, key, extra, _selection(bank, numbers))
        joined = digest(
            require_value(key.public.scheme).hash,
            *(values[n] for n in numbers),
        )
        if joined == parse_quote(raw).pcr_digest:
            return Quoted(raw, signature, values)
    raise UnavailableError(
        "the TPM's registers change while they are read", code="tpm-restless"
    )


def _quote_once(
    client: TpmClient, key: LoadedKey, extra: bytes, selection: bytes
) -> tuple[bytes, bytes]:
    answer = client.run(
        Command.QUOTE,
        (key.handle,),
        sized(extra) + struct.pack(">H", 0x0010) + selection,
        sessions=(PASSWORD,),
    )
    reader = answer.reader("quote")
    raw = reader.sized()
    return raw, answer.parameters[reader.offset :]


def _selection(bank: HashName, pcrs: Iterable[int]) -> bytes:
    bits = sum(1 << number for number in pcrs).to_bytes(_SELECT_BYTES, "little")
    return struct.pack(">IHB", 1, HASH_NUMBER[bank], _SELECT_BYTES) + bits


def _parse_values(reader: TpmReader) -> dict[int, bytes]:
    reader.take(4)  # how often any register was extended
    numbers = [number for each in parse_selections(reader) for number in each.pcrs]
    values = [reader.sized() for _ in range(reader.number(4))]
    reader.finish()
    if len(values) != len(numbers):
        raise reader.malformed(f"{len(values)} values of {len(numbers)} registers")
    return dict(zip(numbers, values, strict=True))


T = TypeVar("T")
_KEY: Final = "attestation-key.json"
_ENROLMENTS: Final = "enrolments.json"
_EVENTS: Final = "runtime-log"  # one canonical event a line


@dataclass(frozen=True, slots=True)
class _Enrolments:
    signed: tuple[SignedEnrolment, ...]


class RegisterFolder:
    """The folder, made if it is not there.

    Raises:
        UnavailableError: ``disk``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        _checked(lambda: folder.mkdir(mode=0o700, parents=True, exist_ok=True))

    def key(self) -> WrappedKey | None:
        """The attestation key, if one was made."""
        raw = self._read(_KEY)
        return codec.decode(WrappedKey, raw) if raw else None

    def keep_key(self, key: WrappedKey) -> None:
        """Keep the attestation key."""
        self._write(_KEY, codec.encode(key))

    def enrolments(self) -> tuple[SignedEnrolment, ...]:
        """Every enrolment that was kept, newest last."""
        raw = self._read(_ENROLMENTS)
        return codec.decode(_Enrolments, raw).signed if raw else ()

    def keep_enrolment(self, signed: SignedEnrolment) -> None:
        """Add one; it replaces an older one by the same party of the same keys."""
        others = (e for e in self.enrolments() if _subject(e) != _subject(signed))
        kept = (*others, signed)[-MAX_ENROLMENTS:]
        self._write(_ENROLMENTS, codec.encode(_Enrolments(kept)))

    def events(self) -> tuple[RuntimeEvent, ...]:
        """The runtime log as far as it can be read; the register decides on it."""
        events = []
        for line in self._read(_EVENTS).splitlines():
            try:
                events.append(codec.decode(RuntimeEvent, line))
            except MalformedError:
                break
        return tuple(events)

    def keep_events(self, events: Iterable[RuntimeEvent]) -> None:
        """Replace the runtime log."""
        self._write(_EVENTS, b"".join(codec.encode(each) + b"\n" for each in events))

    def append_event(self, event: RuntimeEvent) -> None:
        """Add to the runtime log."""

        def append() -> None:
            with (self._folder / _EVENTS).open("ab") as file:
                file.write(codec.encode(event) + b"\n")

        _checked(append)

    def _read(self, name: str) -> bytes:
        path = self._folder / name
        return _checked(path.read_bytes) if path.exists() else b""

    def _write(self, name: str, raw: bytes) -> None:
        if len(raw) > MAX_BODY_BYTES:
            raise MalformedError("there is too much data to save", field=name)
        path = self._folder / name
        fresh = path.with_suffix(".new")
        _checked(lambda: fresh.write_bytes(raw))
        _checked(lambda: fresh.replace(path))


def _subject(signed: SignedEnrolment) -> tuple[PublicKey, bytes, Digest]:
    pair = signed.enrolment
    return signed.enroller, pair.attestation_key, pair.endorsement_key


def _checked(act: Callable[[], T]) -> T:
    try:
        return act()
    except OSError as error:
        raise UnavailableError(
            "the TPM's state folder cannot be used",
            why=error,
            fix="Give a folder that this user may write to, on a disk with free space",
            code="disk",
        ) from None


_RESETTABLE: Final = frozenset({16, 20, 21, 22, 23})


def require_log_register(register: int, quoted: Sequence[int]) -> None:
    """Refuse a register that cannot carry the runtime log (rule M7).

    Raises:
        UsageError: if software can reset it, or it is not quoted.
    """
    if register in _RESETTABLE or register not in quoted:
        raise UsageError(
            f"PCR {register} cannot be used for the runtime log",
            why="software can reset it, or it is not quoted",
            fix="Use PCR 15",
        )


class TpmHost:
    """What attesters have that quote a TPM: the TPM, the folder, the log of this boot.

    Use as a context manager, or call ``close``.

    Args:
        tpm: ``/dev/tpmrm0``, ``unix:PATH`` or ``tcp:HOST:PORT``.
        state: The folder that remembers the events.
        bank: The bank that is quoted.
        register: The PCR that the log extends.

    Raises:
        UnavailableError: if there is no TPM, or it lacks a key or the bank.
    """

    def __init__(self, tpm: str, state: Path, bank: HashName, register: int) -> None:
        self._folder = RegisterFolder(state)
        self._bank, self._register = bank, register
        self._lock = threading.RLock()
        self._client = TpmClient(open_link(tpm))
        try:
            self._client.begin()
            self._find_keys()
            self._events = self._find_events()
        except BaseException:
            self._client.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def client(self) -> TpmClient:
        """The TPM, for counters beside the evidence."""
        return self._client

    @property
    def events(self) -> tuple[RuntimeEvent, ...]:
        """The runtime log of this boot."""
        return self._events

    def measure(self, event: RuntimeEvent) -> None:
        """Extend the runtime log's register with ``event``, in every bank in use."""
        with self._lock:
            # The log first: after a crash, an event too many is found and dropped.
            self._folder.append_event(event)
            banks: tuple[HashName, ...] = ("sha256", self._bank)
            digests = {name: event_digest(event, name) for name in banks}
            extend(self._client, self._register, digests)
            self._events = (*self._events, event)

    def close(self) -> None:
        """Let go of the TPM; what was loaded is flushed by the next user or the kernel."""
        self._client.close()

    def _find_keys(self) -> None:
        """Find what quotes are signed with; there may be no TPM of the right kind."""

    def _find_events(self) -> tuple[RuntimeEvent, ...]:
        """The log of this boot; what the register does not confirm is forgotten."""
        bank, register = self._bank, self._register
        now = read_registers(self._client, bank, [register])[register]
        kept, start = self._folder.events(), bytes(digest_bytes(bank))
        found: tuple[RuntimeEvent, ...] = ()
        for events in (kept, kept[:-1]):
            if replay(events, bank, start) == now:
                found = events
                break
        self._folder.keep_events(found)
        return found
