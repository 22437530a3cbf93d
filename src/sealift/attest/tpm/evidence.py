"""Format of TPM evidence: a quote, whose TPM it is, and the logs behind the registers.

The body is canonical JSON (spec/evidence-tpm.md). Structures of the TPM are carried as
the TPM wrote them: TPMS_ATTEST and TPMT_SIGNATURE. Source: TPM 2.0 Library part 2,
sections 10.6 (selections), 10.11 (clock), 10.12 (attestation) and 11.3 (signatures); part
1 section 36 (clock and counters).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sealift.attest.evidence import Body
from sealift.attest.runtimelog import MAX_EVENTS, RuntimeEvent
from sealift.attest.tpm.enrolment import MAX_ENROLMENTS, SignedEnrolment
from sealift.attest.tpm.structures import (
    SCHEMES,
    Public,
    Scheme,
    TpmReader,
)
from sealift.attest.verifier import AppraisalCheck, check
from sealift.crypto.certificate import MAX_CHAIN
from sealift.crypto.hash import HASHES, HashName, digest, digest_bytes
from sealift.crypto.vendorkeys import EcdsaKey, RsaKey
from sealift.errors import AuthenticationError, EvidenceError, MalformedError

MAGIC: Final = 0xFF544347  # TPM_GENERATED_VALUE: only the TPM writes what begins so
_QUOTE: Final = 0x8018  # TPM_ST_ATTEST_QUOTE
_MAX_SELECT_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class ClockInfo:
    """A TPM's own account of its time.

    Attributes:
        clock_ms: Milliseconds that it was on, ever.
        reset_count: Power cycles; a constant unknown offset may be added.
        restart_count: Suspends since then; likewise.
        safe: False if ``clock_ms`` may have been told higher before.
    """

    clock_ms: int
    reset_count: int
    restart_count: int
    safe: bool


@dataclass(frozen=True, slots=True)
class Selection:
    """PCRs of one bank, in ascending order."""

    bank: HashName
    pcrs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TpmQuote:
    """A parsed TPMS_ATTEST of type quote; nothing is verified yet.

    Attributes:
        raw: What is signed.
        signer: Qualified Name of the key.
        extra: qualifyingData: the challenge.
        clock: Clock and counters.
        firmware: Version, perhaps with an unknown offset.
        selections: What was quoted, bank by bank.
        pcr_digest: Hash of all quoted values in that order.
    """

    raw: bytes
    signer: bytes
    extra: bytes
    clock: ClockInfo
    firmware: int
    selections: tuple[Selection, ...]
    pcr_digest: bytes


@dataclass(frozen=True, slots=True)
class TpmSignature:
    """A parsed TPMT_SIGNATURE; r and s of ECDSA are as long as they were sent."""

    scheme: Scheme
    parts: tuple[bytes, ...]

    def verify(self, key: EcdsaKey | RsaKey, message: bytes) -> None:
        """Check it over ``message``.

        Raises:
            AuthenticationError: if it does not verify.
        """
        if isinstance(key, EcdsaKey) and self.scheme.name == "ecdsa":
            key.verify_raw(message, self._joined(key.field_bytes), self.scheme.hash)
        elif isinstance(key, RsaKey) and self.scheme.name == "rsassa":
            key.verify(message, self.parts[0], self.scheme.hash)
        elif isinstance(key, RsaKey) and self.scheme.name == "rsapss":
            key.verify_pss(message, self.parts[0], self.scheme.hash)
        else:
            raise AuthenticationError

    def _joined(self, size: int) -> bytes:
        return b"".join(part.rjust(size, b"\0") for part in self.parts)


def parse_quote(raw: bytes) -> TpmQuote:
    """Parse a TPMS_ATTEST.

    Raises:
        MalformedError: if a TPM did not write it so, it is no quote, or bytes are left.
    """
    reader = TpmReader(raw, "TPM quote")
    if reader.number(4) != MAGIC:
        raise reader.malformed(
            "it does not begin with TPM_GENERATED, so no TPM made it"
        )
    reader.one_of({_QUOTE: "quote"}, "type of attestation")
    signer, extra = reader.sized(), reader.sized()
    clock = _parse_clock(reader)
    firmware = reader.number(8)
    selections = parse_selections(reader)
    pcr_digest = reader.sized()
    reader.finish()
    return TpmQuote(raw, signer, extra, clock, firmware, selections, pcr_digest)


def parse_signature(raw: bytes) -> TpmSignature:
    """Parse a TPMT_SIGNATURE: RSASSA, RSAPSS or ECDSA.

    Raises:
        MalformedError: for anything else, or bytes left over.
    """
    reader = TpmReader(raw, "TPM signature")
    scheme = Scheme(reader.one_of(SCHEMES, "signature scheme"), reader.hash_name())
    count = 2 if scheme.name == "ecdsa" else 1
    parts = tuple(reader.sized() for _ in range(count))
    reader.finish()
    return TpmSignature(scheme, parts)


def parse_selections(reader: TpmReader) -> tuple[Selection, ...]:
    """Parse a TPML_PCR_SELECTION: every bank once.

    Raises:
        MalformedError: for anything else.
    """
    count = reader.number(4)
    if count > 16:
        raise reader.malformed(f"it has {count} banks; the limit is 16")
    selections = tuple(_parse_selection(reader) for _ in range(count))
    banks = [each.bank for each in selections]
    if len(set(banks)) != len(banks):
        raise reader.malformed("a bank is listed twice")
    return selections


def verify_signature(quote: TpmQuote, signature: TpmSignature, public: Public) -> None:
    """The key made this signature, in the one way that its public area allows.

    Raises:
        EvidenceError: ``tpm-signature``.
    """
    try:
        if public.scheme != signature.scheme:
            raise AuthenticationError
        signature.verify(public.key, quote.raw)
    except AuthenticationError:
        raise EvidenceError(
            "the quote was not signed by its attestation key", code="tpm-signature"
        ) from None


def verify_values(
    quote: TpmQuote, values: Mapping[HashName, Mapping[int, bytes]], name: HashName
) -> None:
    """Exactly the quoted registers are given, with the quoted values.

    Args:
        quote: The quote.
        values: By bank and number.
        name: Hash of the signature scheme, which the digest is made with.

    Raises:
        MalformedError: if other registers are given than were quoted.
        EvidenceError: ``tpm-pcr-digest``.
    """
    quoted = {each.bank: set(each.pcrs) for each in quote.selections if each.pcrs}
    if quoted != {bank: set(each) for bank, each in values.items()}:
        raise MalformedError(
            "the given registers are not those that were quoted", field="pcrs"
        )
    ordered = [values[each.bank][n] for each in quote.selections for n in each.pcrs]
    lengths = [digest_bytes(each.bank) for each in quote.selections for _ in each.pcrs]
    if [len(value) for value in ordered] != lengths:
        raise MalformedError("a register has a wrong length", field="pcrs")
    if digest(name, *ordered) != quote.pcr_digest:
        raise EvidenceError(
            "the given register values are not the quoted ones",
            why="their digest differs from the signed one",
            code="tpm-pcr-digest",
        )


def _parse_clock(reader: TpmReader) -> ClockInfo:
    clock, resets, restarts = reader.number(8), reader.number(4), reader.number(4)
    safe = reader.number(1)
    if safe > 1:
        raise reader.malformed(f"the clock's safe flag is {safe}; it must be 0 or 1")
    return ClockInfo(clock, resets, restarts, bool(safe))


def _parse_selection(reader: TpmReader) -> Selection:
    bank = reader.hash_name()
    size = reader.number(1)
    if not 0 < size <= _MAX_SELECT_BYTES:
        raise reader.malformed(f"a selection of registers has {size} bytes")
    bits = int.from_bytes(reader.take(size), "little")
    return Selection(bank, tuple(n for n in range(8 * size) if bits >> n & 1))


MEDIA_TYPE: Final = "application/vnd.sealift.tpm-evidence+json"
IMA_PCR: Final = 10
_NUMBERS: Final = {str(number): number for number in range(24)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TpmBody(Body):
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

    kind = "tpm"

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
                raise MalformedError(f"it has more than {limit} entries", field=field)
        if self.ima_from < 0:
            raise MalformedError("the number of entries is negative", field="ima_from")
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
            raise MalformedError(
                "the value is not the number of a register", field="pcrs"
            )
    if not pcrs.keys() <= HASHES.keys():
        raise MalformedError("the value is not a bank of registers", field="pcrs")
    return {
        HASHES[bank]: {_NUMBERS[number]: raw for number, raw in numbers.items()}
        for bank, numbers in pcrs.items()
    }


def clock_measurements(clock: ClockInfo) -> dict[str, bytes]:
    """Clock and counters as measurements of claims, big-endian."""
    return {
        "clock": clock.clock_ms.to_bytes(8, "big"),
        "reset-count": clock.reset_count.to_bytes(4, "big"),
        "restart-count": clock.restart_count.to_bytes(4, "big"),
    }


def check_same_boot(
    before: Mapping[str, bytes], now: Mapping[str, bytes]
) -> AppraisalCheck:
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
        _say(before),
        _say(now),
        "tpm-reset",
        refusal="stale",
    )


def _say(measurements: Mapping[str, bytes]) -> str:
    resets, restarts, clock = (
        int.from_bytes(measurements.get(name, b""), "big")
        for name in ("reset-count", "restart-count", "clock")
    )
    return f"reset {resets}, restart {restarts}, clock {clock} ms"
