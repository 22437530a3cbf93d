"""Whatever bytes come: TDX parsers and the verifier refuse in their own words."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sealift.attest import binary as der
from sealift.attest.evidence import Evidence
from sealift.attest.reference import AppraisalBasis
from sealift.attest.tdx import evidence as sgxquote
from sealift.attest.tdx import platform as pck
from sealift.attest.tdx import tcb as tcbinfo
from sealift.attest.tdx.evidence import MEDIA_TYPE, TdxBody
from sealift.attest.tools import collateral as pcs
from sealift.crypto.certificate import Certificate, certificates_from_pem
from sealift.crypto.chain import RevocationList
from sealift.errors import MalformedError, RefusedError
from tests.sim.intel_world import IntelWorld, pck_extension
from tests.sim.made_chain import AT_S

WORLD = IntelWorld()
COLLATERAL = WORLD.collateral()
REFERENCES = WORLD.references()
QUOTES = [
    WORLD.quote(bytes(64)),
    WORLD.quote(bytes(64), version=5),
    WORLD.quote(bytes(64), version=5, service=True),
]
EXTENSION = pck_extension([1] * 16, 300)
LISTS = [COLLATERAL.items["tdx/tcb-info"], COLLATERAL.items["tdx/qe-identity"]]
PARSERS: list[Callable[[bytes], object]] = [
    sgxquote.parse_quote,
    sgxquote.parse_td_report,
    sgxquote.parse_enclave_report,
    pck.parse_extension,
    tcbinfo.split_list,
    tcbinfo.parse_tcb_info,
    tcbinfo.parse_qe_identity,
    pcs.import_collateral,
    der.read_values,
    der.read_oid,
    der.read_number,
    TdxBody.parse,
    Certificate,
    RevocationList,
    certificates_from_pem,
]


def parsed(parse: Callable[[bytes], object], raw: bytes) -> object:
    """What it parses to; None if it is refused as it should be."""
    try:
        return parse(raw)
    except MalformedError:
        return None


@st.composite
def damaged(draw: st.DrawFn, originals: list[bytes]) -> bytes:
    """Something good with a part replaced, cut out or doubled."""
    raw = draw(st.sampled_from(originals))
    start = draw(st.integers(0, len(raw)))
    end = draw(st.integers(start, min(len(raw), start + 40)))
    return raw[:start] + draw(st.binary(max_size=40)) + raw[end:]


@pytest.mark.parametrize("parse", PARSERS, ids=lambda parse: parse.__name__)
@given(raw=st.binary(max_size=700))
def test_any_bytes(parse: Callable[[bytes], object], raw: bytes) -> None:
    parsed(parse, raw)


@given(damaged(QUOTES))
def test_damaged_quotes(raw: bytes) -> None:
    parsed(sgxquote.parse_quote, raw)


@given(damaged([EXTENSION]))
def test_damaged_extensions(raw: bytes) -> None:
    found = parsed(pck.parse_extension, raw)
    if isinstance(found, pck.PlatformFacts):
        assert (len(found.ppid), len(found.fmspc)) == (16, 6)
        assert len(found.components) == 16


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=9,
)


@given(data=st.data(), value=plain)
def test_lists_with_any_value_anywhere(data: st.DataObject, value: Any) -> None:
    for whole, parse in (
        (WORLD.tcb_info(), tcbinfo.parse_tcb_info),
        (WORLD.identity(), tcbinfo.parse_qe_identity),
    ):
        at: Any = whole
        while True:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            key = data.draw(st.sampled_from(keys))
            deeper = isinstance(at[key], dict | list) and at[key]
            if not deeper or data.draw(st.booleans()):
                at[key] = value
                break
            at = at[key]
        parsed(parse, json.dumps(whole).encode())


@given(damaged(LISTS))
def test_damaged_lists(raw: bytes) -> None:
    found = parsed(tcbinfo.split_list, raw)
    if isinstance(found, tcbinfo.SignedList):
        parsed(tcbinfo.parse_tcb_info, found.signed)
        parsed(tcbinfo.parse_qe_identity, found.signed)


@given(st.lists(st.integers(0, 200)))
def test_der_numbers_come_back(numbers: list[int]) -> None:
    for number in numbers:
        content = number.to_bytes(number.bit_length() // 8 + 1)
        assert der.read_number(content) == number
        with pytest.raises(MalformedError):
            der.read_number(b"\0" + content)


@given(damaged(QUOTES))
def test_a_damaged_quote_is_never_taken(raw: bytes) -> None:
    """Or it says exactly what the whole one does (line breaks, zeros at the end)."""
    evidence = Evidence("tdx", MEDIA_TYPE, TdxBody(quote=raw).to_evidence().body)
    try:
        claims = WORLD.verifier().examine(
            evidence,
            AppraisalBasis(
                bound=bytes(32), references=REFERENCES, collateral=COLLATERAL, at_s=AT_S
            ),
        )
    except (MalformedError, RefusedError):
        return
    assert all(each.passed for each in claims.checks)
    assert any(
        sgxquote.parse_quote(raw).signed == sgxquote.parse_quote(each).signed
        for each in QUOTES
    )
