"""Format of TPM evidence: a quote, whose TPM it is, and the logs behind the registers.

The body is canonical JSON (spec/evidence-tpm.md). Structures of the TPM are carried as
the TPM wrote them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sealift import codec
from sealift.attest.check import Check, check
from sealift.attest.evidence import MAX_BODY_BYTES
from sealift.attest.runtimelog import MAX_EVENTS, RuntimeEvent
from sealift.attest.tpm.enrolment import MAX_ENROLMENTS, SignedEnrolment
from sealift.attest.tpm.quote import ClockInfo
from sealift.crypto.certificate import MAX_CHAIN
from sealift.crypto.hash import HashName
from sealift.errors import MalformedError

KIND: Final = "tpm"
MEDIA_TYPE: Final = "application/vnd.sealift.tpm-evidence+json"
IMA_PCR: Final = 10
_BANKS: Final[dict[str, HashName]] = {
    "sha1": "sha1",
    "sha256": "sha256",
    "sha384": "sha384",
    "sha512": "sha512",
}
_NUMBERS: Final = {str(number): number for number in range(24)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TpmBody:
    """The whole body.

    Attributes:
        quote: TPMS_ATTEST.
        signature: TPMT_SIGNATURE.
        attestation_key: TPMT_PUBLIC.
        certificates: DER: of the endorsement key first, then its issuers.
        enrolments: Who found the attestation key in that TPM.
        pcrs: The quoted values by bank and number (decimal).
        event_log: The firmware's event log; empty if there is none.
        ima_list: The kernel's measurement list, or its entries from ``ima_from``.
        ima_from: Entries that were left out, because the verifier knows them.
        events: The runtime log of ``register``.
    """

    quote: bytes
    signature: bytes
    attestation_key: bytes
    certificates: tuple[bytes, ...]
    enrolments: tuple[SignedEnrolment, ...]
    pcrs: dict[str, dict[str, bytes]]
    event_log: bytes
    ima_list: bytes
    ima_from: int
    events: tuple[RuntimeEvent, ...]

    def __post_init__(self) -> None:
        for field, many, limit in (
            ("certificates", len(self.certificates), MAX_CHAIN),
            ("enrolments", len(self.enrolments), MAX_ENROLMENTS),
            ("events", len(self.events), MAX_EVENTS),
        ):
            if many > limit:
                raise MalformedError(f"more than {limit} of them", field=field)
        if self.ima_from < 0:
            raise MalformedError("a negative number of entries", field="ima_from")
        self.registers()

    def registers(self) -> dict[HashName, dict[int, bytes]]:
        """The quoted values by bank and number.

        Raises:
            MalformedError: for a bank or a number that no TPM has.
        """
        return parse_registers(self.pcrs)


def parse_registers(
    pcrs: Mapping[str, Mapping[str, bytes]],
) -> dict[HashName, dict[int, bytes]]:
    """Values by bank and number, of the same in text.

    Raises:
        MalformedError: for a bank or a number that no TPM has.
    """
    for numbers in pcrs.values():
        if not numbers.keys() <= _NUMBERS.keys():
            raise MalformedError("not the number of a register", field="pcrs")
    if not pcrs.keys() <= _BANKS.keys():
        raise MalformedError("not a bank of registers", field="pcrs")
    return {
        _BANKS[bank]: {_NUMBERS[number]: raw for number, raw in numbers.items()}
        for bank, numbers in pcrs.items()
    }


def parse_body(body: bytes) -> TpmBody:
    """Parse; trusts nothing.

    Raises:
        MalformedError: if it is not this format.
    """
    return codec.decode(TpmBody, body, max_bytes=MAX_BODY_BYTES)


def clock_measurements(clock: ClockInfo) -> dict[str, bytes]:
    """Clock and counters as measurements of claims, big-endian."""
    return {
        "clock": clock.clock_ms.to_bytes(8, "big"),
        "reset-count": clock.reset_count.to_bytes(4, "big"),
        "restart-count": clock.restart_count.to_bytes(4, "big"),
    }


def check_same_boot(before: Mapping[str, bytes], now: Mapping[str, bytes]) -> Check:
    """The host was neither reset nor suspended between two quotes of one key.

    Args:
        before: ``measurements`` of the earlier claims.
        now: Those of the later ones.
    """
    counters = ("reset-count", "restart-count")
    same = all(before.get(name) == now.get(name) for name in counters)
    forward = before.get("clock", b"\xff") <= now.get("clock", b"")
    return check(
        same and forward and "clock" in before,
        "TPM clock since the last quote",
        expected=_say(before),
        found=_say(now),
        code="tpm-reset",
        refusal="stale",
    )


def _say(measurements: Mapping[str, bytes]) -> str:
    resets, restarts, clock = (
        int.from_bytes(measurements.get(name, b""), "big")
        for name in ("reset-count", "restart-count", "clock")
    )
    return f"reset {resets}, restart {restarts}, clock {clock} ms"
