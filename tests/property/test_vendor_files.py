"""Files of strangers at the command line: read, or refused by name."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

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
