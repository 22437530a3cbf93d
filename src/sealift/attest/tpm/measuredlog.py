"""The runtime log of a host: events, kept in a folder and extended into one register.

The folder is only a memory of what was extended: after a restart the register decides
whether it is of this boot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sealift.attest.runtimelog import RuntimeEvent, event_digest, replay
from sealift.attest.tpm.client import TpmClient
from sealift.attest.tpm.registers import extend, read_registers
from sealift.attest.tpm.statefolder import StateFolder
from sealift.crypto.hash import HashName, digest_bytes
from sealift.errors import UsageError

_RESETTABLE: Final = frozenset({16, 20, 21, 22, 23})


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Where a runtime log is kept.

    Attributes:
        folder: Remembers the events.
        bank: The bank that is quoted.
        register: The PCR that is extended.
    """

    folder: StateFolder
    bank: HashName
    register: int


def require_log_register(register: int, quoted: Sequence[int]) -> None:
    """Refuse a register that cannot carry the runtime log (rule M7).

    Raises:
        UsageError: if software can reset it, or it is not quoted.
    """
    if register in _RESETTABLE or register not in quoted:
        raise UsageError(
            f"PCR {register} cannot carry the runtime log",
            why="software can reset it, or it is not quoted",
            fix="Use PCR 15",
        )


class MeasuredLog:
    """The log of this boot; what the register does not confirm is forgotten."""

    def __init__(self, client: TpmClient, place: LogPlace) -> None:
        self._client = client
        self._place = place
        self.events = self._find()

    def measure(self, event: RuntimeEvent) -> None:
        """Extend the register with ``event``, in every bank in use."""
        # The log first: after a crash, an event too many is found and dropped.
        self._place.folder.append_event(event)
        banks: tuple[HashName, ...] = ("sha256", self._place.bank)
        digests = {name: event_digest(event, name) for name in banks}
        extend(self._client, self._place.register, digests)
        self.events = (*self.events, event)

    def _find(self) -> tuple[RuntimeEvent, ...]:
        bank, register = self._place.bank, self._place.register
        now = read_registers(self._client, bank, [register])[register]
        kept, start = self._place.folder.events(), bytes(digest_bytes(bank))
        found: tuple[RuntimeEvent, ...] = ()
        for events in _with_and_without_last(kept):
            if replay(events, bank, start) == now:
                found = events
                break
        self._place.folder.keep_events(found)
        return found


def _with_and_without_last(
    events: tuple[RuntimeEvent, ...],
) -> Sequence[tuple[RuntimeEvent, ...]]:
    return (events, events[:-1]) if events else (events,)
