"""TPM quotes: what the TPM signed (TPMS_ATTEST) and the signature (TPMT_SIGNATURE).

Source: TPM 2.0 Library part 2, sections 10.6 (selections), 10.11 (clock), 10.12
(attestation) and 11.3 (signatures); part 1 section 36 (clock and counters).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sealift.attest.tpm.public import Public, Scheme
from sealift.attest.tpm.wire import (
    ALG_ECDSA,
    ALG_RSAPSS,
    ALG_RSASSA,
    TpmReader,
)
from sealift.crypto.ecdsa import EcdsaKey
from sealift.crypto.hash import HashName, digest, digest_bytes
from sealift.crypto.rsa import RsaKey
from sealift.errors import AuthenticationError, EvidenceError, MalformedError

MAGIC: Final = 0xFF544347  # TPM_GENERATED_VALUE: only the TPM writes what begins so
_QUOTE: Final = 0x8018  # TPM_ST_ATTEST_QUOTE
_MAX_SELECT_BYTES: Final = 4
_SCHEMES: Final = {
    ALG_RSASSA: "rsassa",
    ALG_RSAPSS: "rsapss",
    ALG_ECDSA: "ecdsa",
}


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
class Quote:
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
class Signature:
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
            key.verify_pkcs1(message, self.parts[0], self.scheme.hash)
        elif isinstance(key, RsaKey) and self.scheme.name == "rsapss":
            key.verify_pss(message, self.parts[0], self.scheme.hash)
        else:
            raise AuthenticationError

    def _joined(self, size: int) -> bytes:
        return b"".join(part.rjust(size, b"\0") for part in self.parts)


def parse_quote(raw: bytes) -> Quote:
    """Parse a TPMS_ATTEST.

    Raises:
        MalformedError: if a TPM did not write it so, it is no quote, or bytes are left.
    """
    reader = TpmReader(raw, "TPM quote")
    if reader.number(4) != MAGIC:
        raise reader.malformed("it does not begin as what a TPM generates")
    reader.one_of({_QUOTE: "quote"}, "type of attestation")
    signer, extra = reader.sized(), reader.sized()
    clock = _parse_clock(reader)
    firmware = reader.number(8)
    selections = parse_selections(reader)
    pcr_digest = reader.sized()
    reader.finish()
    return Quote(raw, signer, extra, clock, firmware, selections, pcr_digest)


def parse_signature(raw: bytes) -> Signature:
    """Parse a TPMT_SIGNATURE: RSASSA, RSAPSS or ECDSA.

    Raises:
        MalformedError: for anything else, or bytes left over.
    """
    reader = TpmReader(raw, "TPM signature")
    scheme = Scheme(reader.one_of(_SCHEMES, "signature scheme"), reader.hash_name())
    count = 2 if scheme.name == "ecdsa" else 1
    parts = tuple(reader.sized() for _ in range(count))
    reader.finish()
    return Signature(scheme, parts)


def parse_selections(reader: TpmReader) -> tuple[Selection, ...]:
    """Parse a TPML_PCR_SELECTION: every bank once.

    Raises:
        MalformedError: for anything else.
    """
    count = reader.number(4)
    if count > 16:
        raise reader.malformed(f"{count} banks")
    selections = tuple(_parse_selection(reader) for _ in range(count))
    banks = [each.bank for each in selections]
    if len(set(banks)) != len(banks):
        raise reader.malformed("a bank stands twice")
    return selections


def verify_signature(quote: Quote, signature: Signature, public: Public) -> None:
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
            "the quote is not signed by its attestation key", code="tpm-signature"
        ) from None


def verify_values(
    quote: Quote, values: Mapping[HashName, Mapping[int, bytes]], name: HashName
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
        raise MalformedError("other registers are given than were quoted", field="pcrs")
    ordered = [values[each.bank][n] for each in quote.selections for n in each.pcrs]
    lengths = [digest_bytes(each.bank) for each in quote.selections for _ in each.pcrs]
    if [len(value) for value in ordered] != lengths:
        raise MalformedError("a register of a wrong length", field="pcrs")
    if digest(name, *ordered) != quote.pcr_digest:
        raise EvidenceError(
            "the registers are not those that were quoted",
            why="their digest differs from the signed one",
            code="tpm-pcr-digest",
        )


def _parse_clock(reader: TpmReader) -> ClockInfo:
    clock, resets, restarts = reader.number(8), reader.number(4), reader.number(4)
    safe = reader.number(1)
    if safe > 1:
        raise reader.malformed(f"{safe} is neither yes nor no")
    return ClockInfo(clock, resets, restarts, bool(safe))


def _parse_selection(reader: TpmReader) -> Selection:
    bank = reader.hash_name()
    size = reader.number(1)
    if not 0 < size <= _MAX_SELECT_BYTES:
        raise reader.malformed(f"a selection of {size} bytes")
    bits = int.from_bytes(reader.take(size), "little")
    return Selection(bank, tuple(n for n in range(8 * size) if bits >> n & 1))
