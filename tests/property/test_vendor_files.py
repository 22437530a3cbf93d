"""Files of strangers at the command line: read, or refused by name."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sealift.attest.snp.evidence import REPORT_FIELDS
from sealift.attest.tools.collateral import item_times, to_items
from sealift.attest.tools.vendorfiles import wrap
from sealift.errors import MalformedError, UsageError

NAMES = ("quote", "report", "hcl_report", "tpm_quote", "vcek", "td_quote", "message",
         "signature", "pcrs", "certificate", "evidence", "cc_eventlog", "evidences",
         "evidence_list", "tdx", "nvgpu", "attestation_report", "cert_chain", "auxblob",
         "data", "__cmwc_t", "gpu_0", "token", "svn", "attestation")  # fmt: skip
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 300)
    | st.just(float("inf"))  # what Python reads 1e999 as
    | st.text(max_size=8)
    | st.sampled_from(
        ["AAAA", "0003", "MIIB", "-----BEGIN CERTIFICATE-----", "eyJhb.a.b"]
    ),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5)
    ),
    max_leaves=20,
)


def read(raw: bytes, device: int = 0) -> None:
    with suppress(MalformedError, UsageError):
        wrap(raw, (), device)


@given(VALUES, st.integers(-1, 2))
def test_any_json(value: Any, device: int) -> None:
    read(json.dumps(value).encode(), device)


SNP_REPORT = {
    **dict.fromkeys(REPORT_FIELDS, 0),
    **{name: {"build": 1, "minor": 1, "major": 1} for name in ("current", "committed")},
    **{name: {} for name in REPORT_FIELDS if name.endswith("_tcb")},
    "signature": {"r": [0] * 72, "s": [0] * 72},
}


@given(st.sampled_from(sorted(SNP_REPORT)), VALUES, st.booleans())
def test_any_value_in_a_report(name: str, value: Any, within: bool) -> None:
    found: Any = SNP_REPORT[name]
    changed = {**found, "r": value} if within and isinstance(found, dict) else value
    read(json.dumps({"attestation_report": {**SNP_REPORT, name: changed}}).encode())


def packed(value: Any) -> bytes:
    """MessagePack of small values."""
    if isinstance(value, bool) or value is None:
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, int):
        return bytes([value & 0x7F])
    if isinstance(value, str):
        return bytes([0xA0 + len(value[:7].encode())]) + value[:7].encode()
    if isinstance(value, list):
        return bytes([0x90 + len(value)]) + b"".join(map(packed, value))
    if isinstance(value, dict):
        pairs = (packed_text(name) + packed(each) for name, each in value.items())
        return bytes([0x80 + len(value)]) + b"".join(pairs)
    return b"\xca" + bytes(4)


def packed_text(text: str) -> bytes:
    return b"\xd9" + bytes([len(text)]) + text.encode()


@given(st.sampled_from(["x", "tdx", "sev-snp", "nitro"]), VALUES)
@example("x", [1])
def test_any_container(kind: str, data: Any) -> None:
    read(packed({"platform": {"kind": kind, "data": data}, "version": 1}))


def test_a_number_too_large_for_a_report_is_refused() -> None:
    raw = json.dumps({"attestation_report": {**SNP_REPORT, "version": "1e999"}})
    for value in ("1e999", str(2**70), "-1"):
        with pytest.raises(MalformedError):
            wrap(raw.replace('"1e999"', value).encode())


@given(
    st.sampled_from([b"", b"\x11\xe0", b"\4\0", b"\5\0", b"\3\0", b"\2\0\0\0"]),
    st.binary(max_size=1300),
)
def test_any_bytes(head: bytes, tail: bytes) -> None:
    read(head + tail)
    read((head + tail).hex().encode())
    read((head + tail)[:1184].ljust(1184, b"\0"))


@given(
    st.binary(max_size=300)
    | st.dictionaries(
        st.sampled_from(["tcb_info", "rim", "id", "sha256", "tcbInfo", "signature"]),
        VALUES,
        max_size=4,
    ).map(lambda value: json.dumps(value).encode()),
    st.sampled_from(["", "NV_GPU_DRIVER_GH100_1"]),
)
def test_any_collateral(raw: bytes, stem: str) -> None:
    with suppress(MalformedError):
        to_items(raw, stem)
    assert item_times(raw)
