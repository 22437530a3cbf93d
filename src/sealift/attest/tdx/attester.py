"""Collects TDX evidence: a quote by configfs-tsm, the firmware's log, our own events.

Events go into RTMR 3, which nobody can reset while the guest runs: an agent that is
started anew in the same guest has lost its events and gives evidence that is refused.
Source: Linux Documentation/ABI/testing/sysfs-devices-virtual-misc-tdx_guest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Final

from sealift.attest.configfs import (
    INBLOB_BYTES,
    TsmReader,
    TsmReport,
    interfered,
    require_provider,
    write_once,
)
from sealift.attest.evidence import Evidence, require_bound
from sealift.attest.runtimelog import RuntimeEvent, event_digest
from sealift.attest.tdx.evidence import (
    MEDIA_TYPE,
    REGISTER_HASH,
    TdReport,
    TdxBody,
    parse_quote,
)
from sealift.attest.tpm.eventlog import parse
from sealift.errors import UnavailableError

PROVIDER: Final = "tdx_guest"
CCEL_FILE: Final = Path("/sys/firmware/acpi/tables/data/CCEL")
REGISTER_FILE: Final = Path(
    "/sys/devices/virtual/misc/tdx_guest/measurements/rtmr3:sha384"
)


@dataclass(frozen=True, slots=True)
class RuntimeRegister:
    """The kernel's file of RTMR 3 (Linux 6.16 or later): a register that only grows."""

    path: Path = REGISTER_FILE

    def extend(self, digest: bytes) -> None:
        """Hash ``digest`` (48 bytes) into the register; OSError as the kernel has it."""
        write_once(self.path, digest)


@dataclass(slots=True)
class TdxAttester:
    """Attests the TDX guest that this process runs in.

    Attributes:
        reader: Makes reports.
        register: RTMR 3.
        ccel: The firmware's event log; a guest may have none.
    """

    reader: TsmReader = field(default_factory=TsmReader)
    register: RuntimeRegister = field(default_factory=RuntimeRegister)
    ccel: Path = CCEL_FILE
    _events: list[RuntimeEvent] = field(default_factory=list, init=False)
    _lock: Lock = field(default_factory=Lock, init=False, repr=False)

    @property
    def media_type(self) -> str:
        """Of the evidence that it makes."""
        return MEDIA_TYPE

    @property
    def events(self) -> tuple[RuntimeEvent, ...]:
        """What this process measured, in order."""
        return tuple(self._events)

    def measure(self, event: RuntimeEvent) -> None:
        """Extend RTMR 3 with an event, and keep it for the evidence.

        Raises:
            UnavailableError: ``rtmr-unavailable``.
        """
        with self._lock:
            try:
                self.register.extend(event_digest(event, REGISTER_HASH))
            except OSError as error:
                raise UnavailableError(
                    "RTMR 3 cannot be extended",
                    why=error,
                    code="rtmr-unavailable",
                ) from None
            self._events.append(event)

    def collect(self, bound: bytes) -> Evidence:
        """Evidence over ``bound`` and everything measured so far.

        Raises:
            UsageError: if ``bound`` has not 2 to 64 bytes.
            UnavailableError: if the platform gives no quote.
        """
        require_bound(bound)
        with self._lock:
            inblob = bound.ljust(INBLOB_BYTES, b"\0")
            quote = _quote_of(self.reader.report(inblob), inblob)
            body = TdxBody(
                quote=quote, ccel=self._read_ccel(), events=tuple(self._events)
            )
        return body.to_evidence()

    def _read_ccel(self) -> bytes | None:
        try:
            raw = self.ccel.read_bytes()
        except OSError:
            return None  # without firmware's log the registers are compared alone
        return raw[: len(raw) - parse(raw).padding]


def _quote_of(report: TsmReport, inblob: bytes) -> bytes:
    """The quote, if it is one of this guest and carries what was asked for."""
    require_provider(report, PROVIDER)
    body = parse_quote(report.outblob).body
    if not isinstance(body, TdReport) or body.report_data != inblob:
        raise interfered("its quote is not over what was asked for")
    return report.outblob
