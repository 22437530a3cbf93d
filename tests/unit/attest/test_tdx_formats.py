"""Parsers of TDX's formats: what they read from made bytes, what they refuse."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sealift.attest import binary as der
from sealift.attest.binary import Cursor
from sealift.attest.tdx import evidence as sgxquote
from sealift.attest.tdx import platform as pck
from sealift.attest.tdx import tcb as tcbinfo
from sealift.attest.tools import collateral as pcs
from sealift.errors import MalformedError
from tests.sim.intel_world import FMSPC, PPID, IntelWorld, pck_extension, svn_level
from tests.sim.made_chain import AT_S, DAY_S
from tests.sim.made_chain import der as encode

WORLD = IntelWorld()


def test_a_cursor_never_reads_past_the_end() -> None:
    cursor = Cursor(b"\1\2\3", "three bytes")
    assert cursor.number(2) == 0x0201
    with pytest.raises(MalformedError):
        cursor.require_end()
    with pytest.raises(MalformedError):
        cursor.take(2)
    assert cursor.rest() == b"\3"
    cursor.require_end()
    assert Cursor(b"\1\2", "two", "big").number(2) == 0x0102


@pytest.mark.parametrize(
    "raw",
    ["3080", "308100", "30027f", "1f0100", "3082000100", "0281", "3085000000000100"],
)
def test_what_is_not_der_is_refused(raw: str) -> None:
    with pytest.raises(MalformedError):
        der.read_value(bytes.fromhex(raw), der.SEQUENCE)


@pytest.mark.parametrize("size", [0, 1, 127, 128, 255, 256, 70_000])
def test_der_lengths(size: int) -> None:
    assert der.read_value(encode(0x04, bytes(size)), der.OCTET_STRING) == bytes(size)


def test_object_identifiers() -> None:
    assert der.read_oid(bytes.fromhex("2a864886f84d010d01")) == pck.EXTENSION
    for raw in ("", "80", "2a80", "2a8001"):
        with pytest.raises(MalformedError):
            der.read_oid(bytes.fromhex(raw))


def test_the_platform_extension() -> None:
    facts = pck.parse_extension(pck_extension(list(range(16)), 300))
    assert (facts.ppid, facts.fmspc, facts.pceid) == (PPID, FMSPC, bytes(2))
    assert (facts.components, facts.pcesvn) == (tuple(range(16)), 300)
    assert (facts.instance, facts.smt) == (bytes(16), True)


def test_extensions_that_are_refused() -> None:
    good = pck_extension([1] * 16, 1)
    inner = der.read_value(good, der.SEQUENCE)
    doubled = encode(der.SEQUENCE, inner + encode(0x30, b""))
    wrong: list[bytes] = [
        b"",
        good + b"\0",
        doubled,
        encode(der.SEQUENCE, inner + inner),
        pck_extension([1] * 15, 1),
        pck_extension([1] * 15 + [256], 1),
        pck_extension([1] * 16, 1, ppid=bytes(15)),
    ]
    for raw in wrong:
        with pytest.raises(MalformedError):
            pck.parse_extension(raw)
    with pytest.raises(MalformedError):
        pck.platform_facts(WORLD.root.certificate)


def changed(**places: bytes) -> bytes:
    """A quote of version 4 with bytes replaced at offsets."""
    quote = bytearray(WORLD.quote(bytes(64)))
    for place, content in places.items():
        offset = int(place.removeprefix("at_"))
        quote[offset : offset + len(content)] = content
    return bytes(quote)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        changed(at_0=b"\2"),
        changed(at_0=b"\6"),
        changed(at_2=b"\3"),
        changed(at_4=b"\x82"),
        changed(at_0=b"\3"),
        changed(at_12=b"\0"),
        changed(at_632=b"\xff\xff\xff\xff"),
        changed(at_632=b"\0\0\0\0"),
        changed(at_764=b"\5"),
        changed() + b"\1",
        changed()[:-1],
        bytes(sgxquote.MAX_QUOTE_BYTES + 1),
    ],
)
def test_quotes_that_are_refused(raw: bytes) -> None:
    with pytest.raises(MalformedError):
        sgxquote.parse_quote(raw)


def test_zeros_may_follow_a_quote() -> None:
    quote = changed()
    assert sgxquote.parse_quote(quote + bytes(70)) == sgxquote.parse_quote(quote)


def test_version_5_names_its_body() -> None:
    quote = bytearray(WORLD.quote(bytes(64), version=5, service=True))
    body = sgxquote.parse_quote(bytes(quote)).body
    assert isinstance(body, sgxquote.TdReport)
    assert body.mrservicetd == bytes(48)
    for kind in (1, 2, 4):
        quote[48] = kind
        with pytest.raises(MalformedError):
            sgxquote.parse_quote(bytes(quote))


def test_lists_are_cut_out_as_they_stand() -> None:
    raw = b'{"tcbInfo":{"a": 1},"signature":"' + b"0a" * 64 + b'"}'
    found = tcbinfo.split_list(raw)
    assert (found.name, found.signed) == ("tcbInfo", b'{"a": 1}')
    assert found.signature == b"\x0a" * 64
    for wrong in (b"", raw[:-1], b" " + raw, raw + b"x", raw.replace(b"0a", b"0g")):
        with pytest.raises(MalformedError):
            tcbinfo.split_list(wrong)


def as_bytes(plain: Any) -> bytes:
    return json.dumps(plain).encode()


def test_levels_of_a_platform() -> None:
    found = tcbinfo.parse_tcb_info(as_bytes(WORLD.tcb_info()))
    assert (found.kind, found.fmspc, found.evaluation) == ("TDX", FMSPC, 18)
    assert (found.issued_s, found.due_s) == (AT_S - DAY_S, AT_S + DAY_S)
    assert [each.name for each in found.modules] == ["", "TDX_01"]
    assert found.levels[0].sgx == tuple(WORLD.components)


def test_levels_of_the_older_version() -> None:
    tcb = {f"sgxtcbcomp{i + 1:02}svn": i for i in range(16)} | {"pcesvn": 9}
    plain = WORLD.tcb_info() | {"version": 2}
    plain["tcbLevels"] = [{"tcb": tcb, "tcbStatus": "UpToDate"}]
    del plain["id"]
    found = tcbinfo.parse_tcb_info(as_bytes(plain))
    assert (found.kind, found.modules) == ("SGX", ())
    assert (found.levels[0].sgx, found.levels[0].svn) == (tuple(range(16)), 9)


LISTS: list[dict[str, Any]] = [
    {"version": 4},
    {"version": "3"},
    {"version": True},
    {"id": "NEW"},
    {"issueDate": "yesterday"},
    {"issueDate": "2025-13-01T00:00:00Z"},
    {"issueDate": "2025-01-01T00:00:00+02:00"},
    {"fmspc": "90c06f"},
    {"fmspc": "zz" * 6},
    {"tcbLevels": [{}]},
    {"tcbLevels": [svn_level(1, "Perfect")]},
    {"tcbLevels": {}},
    {"tdxModule": None},
    {"tcbEvaluationDataNumber": 1.0},
]


@pytest.mark.parametrize("change", LISTS)
def test_lists_that_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(MalformedError):
        tcbinfo.parse_tcb_info(as_bytes(WORLD.tcb_info() | change))


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b'{"a":1,"a":2}', b"{" * 5000, b'{"\xff":1}', b"9" * 5000]
)
def test_what_is_no_json_object_is_refused(raw: bytes) -> None:
    for parse in (tcbinfo.parse_tcb_info, tcbinfo.parse_qe_identity):
        with pytest.raises(MalformedError):
            parse(raw)


def test_the_identity_of_a_quoting_enclave() -> None:
    found = tcbinfo.parse_qe_identity(as_bytes(WORLD.identity()))
    assert (found.kind, found.product, len(found.levels)) == ("TD_QE", 2, 3)
    with pytest.raises(MalformedError):
        tcbinfo.parse_qe_identity(as_bytes(WORLD.identity() | {"version": 1}))


def exported(**changes: str) -> bytes:
    """Collateral as tools around DCAP keep it."""
    items = WORLD.collateral().items
    tcb = tcbinfo.split_list(items["tdx/tcb-info"])
    identity = tcbinfo.split_list(items["tdx/qe-identity"])
    plain = {
        "tcb_info": tcb.signed.decode(),
        "tcb_info_signature": tcb.signature.hex(),
        "qe_identity": identity.signed.decode(),
        "qe_identity_signature": identity.signature.hex(),
        "tcb_info_issuer_chain": items["tdx/tcb-info-chain"].decode(),
        "qe_identity_issuer_chain": items["tdx/qe-identity-chain"].decode(),
        "pck_crl_issuer_chain": "chain",
        "root_ca_crl": items["tdx/root-crl"].hex(),
        "pck_crl": items["tdx/pck-crl"].hex(),
    }
    return as_bytes(plain | changes)


def test_collateral_of_other_tools_is_imported() -> None:
    found = pcs.import_collateral(exported())
    wanted = dict(WORLD.collateral().items)
    # Signatures differ each time; everything else is the same.
    assert found.keys() == wanted.keys() | {"tdx/pck-crl-chain"}
    assert tcbinfo.split_list(found["tdx/tcb-info"]).name == "tcbInfo"
    assert found["tdx/tcb-info-chain"] == wanted["tdx/tcb-info-chain"]
    sgx = pcs.import_collateral(exported(tcb_info='{"id":"SGX"}', pck_crl="-----BEGIN"))
    assert sgx["sgx/pck-crl"] == b"-----BEGIN"


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{}", exported(pck_crl="x!z"), exported(tcb_info="é")]
)
def test_other_objects_are_refused(raw: bytes) -> None:
    with pytest.raises(MalformedError):
        pcs.import_collateral(raw)
