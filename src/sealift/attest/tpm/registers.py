"""Platform configuration registers: read, extend, quote.

Source: TPM 2.0 Library part 3, sections 18.4 (quote) and 22 (PCRs).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sealift.attest.tpm.client import PASSWORD, Command, TpmClient
from sealift.attest.tpm.keys import LoadedKey
from sealift.attest.tpm.quote import parse_quote, parse_selections
from sealift.attest.tpm.wire import HASH_NUMBER, TpmReader, sized
from sealift.crypto.hash import HashName, digest
from sealift.errors import UnavailableError

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
            raise UnavailableError(
                f"the TPM keeps no {bank} registers", code="tpm-bank"
            )
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
    assert key.public.scheme is not None, "an attestation key names its scheme"
    for _ in range(_ATTEMPTS):
        values = read_registers(client, bank, numbers)
        raw, signature = _quote_once(client, key, extra, _selection(bank, numbers))
        joined = digest(key.public.scheme.hash, *(values[n] for n in numbers))
        if joined == parse_quote(raw).pcr_digest:
            return Quoted(raw, signature, values)
    raise UnavailableError(
        "the TPM's registers change faster than they are read", code="tpm-restless"
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
