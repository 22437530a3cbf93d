"""What a TPM or a host may send, with anything in it: it parses whole, or is refused."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sealift import codec
from sealift.attest.collateral import Collateral
from sealift.attest.evidence import Evidence
from sealift.attest.reference import AppraisalBasis, ReferenceValues, TpmReferences
from sealift.attest.tpm import keys
from sealift.attest.tpm.client import Command, TpmClient
from sealift.attest.tpm.evidence import (
    MEDIA_TYPE,
    TpmBody,
    parse_quote,
    parse_signature,
)
from sealift.attest.tpm.registers import read_registers
from sealift.attest.tpm.structures import parse_public, sized
from sealift.attest.tpm.verifier import examine_tpm
from sealift.errors import EvidenceError, MalformedError, UnavailableError
from tests.sim.examples import examples

# The generator of P-256: a point that is sure to lie on the curve.
POINT = bytes.fromhex(
    "6b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296"
    "4fe342e2fe1a7f9b8ee7eb4a7c0f9e162bce33576b315ececbb6406837bf51f5"
)
PUBLIC = keys.ATTESTATION_TEMPLATE[:-4] + sized(POINT[:32]) + sized(POINT[32:])
QUOTE = (
    bytes.fromhex("ff544347 8018")
    + sized(b"\0\x0b" + bytes(32))
    + sized(bytes(32))
    + bytes(16)
    + b"\1"
    + bytes(8)
    + bytes.fromhex("00000001 000b 03 ffff00")
    + sized(bytes(32))
)
SIGNATURE = bytes.fromhex("0018 000b") + sized(bytes(32)) * 2
PARSERS: dict[str, tuple[Callable[[bytes], object], bytes]] = {
    "public": (parse_public, PUBLIC),
    "quote": (parse_quote, QUOTE),
    "signature": (parse_signature, SIGNATURE),
}
CHANGES = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=6)
REFERENCES = ReferenceValues(tpm=TpmReferences(roots=(), endorsement_keys=(), pcrs={}))


def changed(raw: bytes, changes: list[tuple[int, int]]) -> bytes:
    result = bytearray(raw)
    for at, value in changes:
        result[at % len(raw)] = value
    return bytes(result)


@pytest.mark.parametrize("name", PARSERS)
def test_the_sample_parses_and_nothing_longer_or_shorter(name: str) -> None:
    parse, sample = PARSERS[name]
    assert parse(sample)
    for size in range(len(sample)):
        with pytest.raises(MalformedError):
            parse(sample[:size])
    with pytest.raises(MalformedError):
        parse(sample + b"\0")


@pytest.mark.parametrize("name", PARSERS)
@given(raw=st.binary(max_size=600))
def test_any_bytes(name: str, raw: bytes) -> None:
    with contextlib.suppress(MalformedError):
        PARSERS[name][0](raw)


@pytest.mark.parametrize("name", PARSERS)
@given(changes=CHANGES)
@examples(300)
def test_nearly_right_bytes(name: str, changes: list[tuple[int, int]]) -> None:
    parse, sample = PARSERS[name]
    with contextlib.suppress(MalformedError):
        parse(changed(sample, changes))


BODIES = st.builds(
    TpmBody,
    quote=CHANGES.map(lambda changes: changed(QUOTE, changes)),
    signature=CHANGES.map(lambda changes: changed(SIGNATURE, changes)),
    attestation_key=CHANGES.map(lambda changes: changed(PUBLIC, changes)),
    certificates=st.lists(st.binary(max_size=40), max_size=2).map(tuple),
    enrolments=st.just(()),
    pcrs=st.dictionaries(
        st.sampled_from(["sha256", "sha1"]),
        st.dictionaries(
            st.integers(0, 23).map(str), st.binary(max_size=33), max_size=4
        ),
    ),
    event_log=st.binary(max_size=60),
    ima_list=st.binary(max_size=60),
    ima_from=st.integers(0, 3),
    events=st.just(()),
)


@given(body=BODIES)
def test_any_body(body: TpmBody) -> None:
    evidence = Evidence(TpmBody.kind, MEDIA_TYPE, codec.encode(body))
    with pytest.raises((EvidenceError, MalformedError)):
        examine_tpm(
            evidence,
            AppraisalBasis(
                bound=bytes(32), references=REFERENCES, collateral=Collateral(), at_s=0
            ),
        )


class AnyLink:
    """A TPM that answers every command with the same bytes."""

    exclusive = False

    def __init__(self, body: bytes) -> None:
        self._body = body

    def exchange(self, command: bytes) -> bytes:
        size = (10 + len(self._body)).to_bytes(4, "big")
        return command[:2] + size + bytes(4) + self._body

    def close(self) -> None:
        pass


@given(body=st.binary(max_size=80))
def test_any_answer(body: bytes) -> None:
    client = TpmClient(AnyLink(body))
    expected = (MalformedError, UnavailableError)
    with contextlib.suppress(*expected):
        client.handles(0x80000000)
    with contextlib.suppress(*expected):
        read_registers(client, "sha256", [0])
    with contextlib.suppress(*expected):
        keys.create_primary(client, keys.OWNER, keys.STORAGE_TEMPLATE)
    with contextlib.suppress(*expected):
        client.run(Command.NV_READ, (1, 1), sessions=(1,)).reader("x").sized()


@pytest.mark.parametrize(
    ("pcrs", "values"), [("010000", 2), ("020000", 1), ("000000", 0), ("030000", 1)]
)
def test_registers_that_were_not_asked_for(pcrs: str, values: int) -> None:
    selection = bytes.fromhex(f"00000001 000b 03 {pcrs}")
    body = bytes(4) + selection + values.to_bytes(4, "big") + sized(bytes(32)) * values
    with pytest.raises((MalformedError, UnavailableError)):
        read_registers(TpmClient(AnyLink(body)), "sha256", [0])


def test_registers_that_were_asked_for() -> None:
    """Control of the test above."""
    selection = bytes.fromhex("00000001 000b 03 010000")
    body = bytes(4) + selection + (1).to_bytes(4, "big") + sized(bytes(32))
    found = read_registers(TpmClient(AnyLink(body)), "sha256", [0])
    assert found == {0: bytes(32)}
