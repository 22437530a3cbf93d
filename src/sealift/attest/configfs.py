"""Collects evidence of TDX and SEV-SNP through configfs-tsm, Linux's one interface to both.

A report is a folder: what is written to ``inblob`` comes back signed in ``outblob``.
Writes take effect when the file is closed, and the kernel tells nobody if it refused
them; every write that took effect counts ``generation`` up by one. So the count is
compared before and after reading: a lost write, or one by somebody else, is noticed.
TDX adds the firmware's log and our own events. These go into RTMR 3, which nobody can
reset while the guest runs: an agent that is started anew in the same guest has lost its
events and gives evidence that is refused.
Source: Linux Documentation/ABI/testing/configfs-tsm-report, drivers/virt/coco,
Documentation/ABI/testing/sysfs-devices-virtual-misc-tdx_guest.
"""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Final

from sealift.attest.evidence import Evidence, require_bound
from sealift.attest.runtimelog import RuntimeEvent, event_digest
from sealift.attest.snp.endorsement import parse_table
from sealift.attest.snp.evidence import SnpBody, parse_report
from sealift.attest.tdx.evidence import REGISTER_HASH, TdReport, TdxBody, parse_quote
from sealift.attest.tpm.eventlog import parse
from sealift.errors import MalformedError, UnavailableError

REPORT_FOLDER: Final = Path("/sys/kernel/config/tsm/report")
INBLOB_BYTES: Final = 64
MAX_BLOB_BYTES: Final = 1 << 20
ATTEMPTS: Final = 3
WAIT_S: Final = 0.1
_BUSY: Final = {errno.EBUSY, errno.EINTR, errno.EAGAIN}


@dataclass(frozen=True, slots=True)
class TsmFolder:
    """The kernel's folder of reports; every method raises ``OSError`` as it does."""

    root: Path = REPORT_FOLDER

    def make(self, entry: str) -> None:
        """Begin a report: mkdir."""
        (self.root / entry).mkdir()

    def write(self, entry: str, attribute: str, content: bytes) -> None:
        """Write an attribute of a report whole."""
        _write_once(self.root / entry / attribute, content)

    def read(self, entry: str, attribute: str) -> bytes:
        """Read an attribute of a report whole."""
        with (self.root / entry / attribute).open("rb") as file:
            return file.read(MAX_BLOB_BYTES + 1)

    def remove(self, entry: str) -> None:
        """End a report: rmdir."""
        (self.root / entry).rmdir()


@dataclass(frozen=True, slots=True)
class TsmReport:
    """What the platform gave.

    Attributes:
        provider: ``tdx_guest`` or ``sev_guest``.
        outblob: The quote or attestation report.
        auxblob: The host's certificates, if it handed any over; SEV-SNP only.
    """

    provider: str
    outblob: bytes
    auxblob: bytes


class _InterferedError(Exception):
    """Somebody else wrote to the report, or the kernel was busy: try a fresh one."""


@dataclass(frozen=True, slots=True)
class TsmReader:
    """Makes one report at a time, each in a folder of its own.

    Attributes:
        folder: Where reports are made.
        wait: Called with seconds between two attempts.
    """

    folder: TsmFolder = TsmFolder()
    wait: Callable[[float], None] = time.sleep

    def report(self, inblob: bytes, *, privlevel: int | None = None) -> TsmReport:
        """A report that carries ``inblob`` (64 bytes).

        Args:
            inblob: What the platform signs with its measurements.
            privlevel: The VMPL that asks, for SEV-SNP; None for TDX.

        Raises:
            UnavailableError: ``tsm-unavailable``, ``tsm-failed``, ``tsm-interfered``.
        """
        if len(inblob) != INBLOB_BYTES:
            raise MalformedError(f"a report must bind {INBLOB_BYTES} bytes")
        why = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                self.wait(WAIT_S * attempt)
            try:
                return self._attempt(inblob, privlevel)
            except _InterferedError as error:
                why = str(error)
        raise interfered(f"{why}, {ATTEMPTS} times")

    def _attempt(self, inblob: bytes, privlevel: int | None) -> TsmReport:
        entry = f"sealift-{secrets.token_hex(8)}"
        try:
            self.folder.make(entry)
        except OSError as error:
            raise UnavailableError(
                "this machine cannot make TDX or SEV-SNP reports",
                why=f"configfs-tsm: {error.strerror or error}",
                code="tsm-unavailable",
            ) from None
        try:
            return self._ask(entry, inblob, privlevel)
        except OSError as error:
            if error.errno in _BUSY:
                raise _InterferedError("the platform was busy") from None
            raise UnavailableError(
                "the platform made no report",
                why=f"configfs-tsm: {error.strerror or error}",
                code="tsm-failed",
            ) from None
        finally:
            with suppress(OSError):  # the report is made; only an empty folder stays
                self.folder.remove(entry)

    def _ask(self, entry: str, inblob: bytes, privlevel: int | None) -> TsmReport:
        expected = self._generation(entry)
        if privlevel is not None:
            self.folder.write(entry, "privlevel", str(privlevel).encode())
            expected += 1
        self.folder.write(entry, "inblob", inblob)
        expected += 1
        self._require_generation(entry, expected, "before the report was read")
        provider = self._text(entry, "provider")
        outblob, auxblob = self.folder.read(entry, "outblob"), b""
        if not 0 < len(outblob) <= MAX_BLOB_BYTES:
            raise OSError(errno.EIO, f"outblob has {len(outblob)} bytes")
        with suppress(
            OSError
        ):  # not every provider shows it, and hosts need not fill it
            auxblob = self.folder.read(entry, "auxblob")
        self._require_generation(entry, expected, "while the report was read")
        return TsmReport(provider, outblob, auxblob)

    def _require_generation(self, entry: str, expected: int, when: str) -> None:
        found = self._generation(entry)
        if found != expected:
            raise _InterferedError(f"{found} writes {when}; {expected} were expected")

    def _generation(self, entry: str) -> int:
        text = self._text(entry, "generation")
        if not (text.isascii() and text.isdigit()):
            raise OSError(errno.EIO, "the kernel returned no generation")
        return int(text)

    def _text(self, entry: str, attribute: str) -> str:
        return self.folder.read(entry, attribute).decode("ascii", "replace").strip()


def _write_once(path: Path, content: bytes) -> None:
    """Write an attribute by one system call, as the kernel takes no second.

    Raises:
        OSError: also if not all of it was taken.
    """
    descriptor = os.open(path, os.O_WRONLY)
    try:
        if os.write(descriptor, content) != len(content):
            raise OSError(errno.EIO, "the kernel accepted only a part")
    finally:
        os.close(descriptor)


def interfered(why: str) -> UnavailableError:
    """The refusal of a report that is not surely ours: ``tsm-interfered``."""
    return UnavailableError(
        "the platform did not return a report for this request",
        why=why,
        code="tsm-interfered",
    )


TDX_GUEST: Final = "tdx_guest"
SEV_GUEST: Final = "sev_guest"


def _report(
    reader: TsmReader,
    bound: bytes,
    provider: str,
    report_data: Callable[[bytes], bytes],
    privlevel: int | None = None,
) -> TsmReport:
    """The provider's report of this guest, if it carries what was asked for."""
    require_bound(bound)
    inblob = bound.ljust(INBLOB_BYTES, b"\0")
    report = reader.report(inblob, privlevel=privlevel)
    if report.provider != provider:
        raise UnavailableError(
            f"this machine cannot make reports of {provider}",
            why=f"its provider of reports is {report.provider}",
            code="tsm-provider",
        )
    if report_data(report.outblob) != inblob:
        raise interfered("the report does not cover the requested data")
    return report


@dataclass(frozen=True, slots=True)
class SnpAttester:
    """Attests the SEV-SNP guest that this process runs in.

    Attributes:
        reader: Makes reports.
        vmpl: The privilege level that asks; the guest cannot ask for a lower number
            than its own.
    """

    reader: TsmReader = field(default_factory=TsmReader)
    vmpl: int = 0

    def collect(self, bound: bytes) -> Evidence:
        """Evidence over ``bound``; certificates that the host kept come by collateral.

        Raises:
            UsageError: if ``bound`` has not 2 to 64 bytes.
            UnavailableError: if the platform gives no report.
        """
        report = _report(
            self.reader,
            bound,
            SEV_GUEST,
            lambda raw: parse_report(raw).report_data,
            privlevel=self.vmpl,
        )
        certificates = parse_table(report.auxblob) if report.auxblob else ()
        body = SnpBody(report=report.outblob, certificates=certificates)
        return body.to_evidence()


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
        _write_once(self.path, digest)


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
        with self._lock:
            quote = _report(self.reader, bound, TDX_GUEST, _report_data).outblob
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


def _report_data(raw: bytes) -> bytes:
    body = parse_quote(raw).body
    return body.report_data if isinstance(body, TdReport) else b""
