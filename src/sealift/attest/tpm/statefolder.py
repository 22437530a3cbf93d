"""What a host keeps about its TPM between starts: keys, enrolments, the runtime log.

Nothing in it is secret: the key is wrapped by the TPM, the rest is signed or measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from sealift import codec
from sealift.attest.evidence import MAX_BODY_BYTES
from sealift.attest.runtimelog import RuntimeEvent
from sealift.attest.tpm.enrolment import MAX_ENROLMENTS, SignedEnrolment
from sealift.attest.tpm.keys import WrappedKey
from sealift.crypto.sign import PublicKey
from sealift.errors import MalformedError, UnavailableError
from sealift.ids import Digest

T = TypeVar("T")
_KEY: Final = "attestation-key.json"
_ENROLMENTS: Final = "enrolments.json"
_EVENTS: Final = "runtime-log"  # one canonical event a line


@dataclass(frozen=True, slots=True)
class _Enrolments:
    signed: tuple[SignedEnrolment, ...]


class StateFolder:
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
        line = codec.encode(event) + b"\n"
        _checked(lambda: self._append(_EVENTS, line))

    def _append(self, name: str, line: bytes) -> None:
        with (self._folder / name).open("ab") as file:
            file.write(line)

    def _read(self, name: str) -> bytes:
        path = self._folder / name
        return _checked(path.read_bytes) if path.exists() else b""

    def _write(self, name: str, raw: bytes) -> None:
        if len(raw) > MAX_BODY_BYTES:
            raise MalformedError("too much to keep", field=name)
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
            fix="Give a folder that this user may write, with room",
            code="disk",
        ) from None
