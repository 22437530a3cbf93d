"""Bytes as vendors' tools write them down, and dstack's containers."""

from __future__ import annotations

import base64
import contextlib
import struct
import textwrap
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from sealift.attest.snp.evidence import REPORT_BYTES, SnpBody
from sealift.attest.tdx.evidence import TdxBody
from sealift.attest.tools.vendorfiles import (
    begins_container,
    decode_text,
    read_bytes,
    read_container,
)
from sealift.errors import MalformedError
from tests.sim.nvidia_device import issue

QUOTE = b"\4\0\2\0\x81" + bytes(range(256)) * 20


def forms(raw: bytes) -> dict[str, str]:
    """Every way in which a tool was seen to write bytes, and mixtures of them."""
    plain, web = base64.b64encode(raw).decode(), base64.urlsafe_b64encode(raw).decode()
    return {
        "hex": raw.hex(),
        "HEX": raw.hex().upper(),
        "0x": "0x" + raw.hex(),
        "0X": "0X" + raw.hex().upper(),
        "wrapped hex": "\n".join(textwrap.wrap(raw.hex(), 64)),
        "spaced hex": raw.hex(" "),
        "base64": plain,
        "bare base64": plain.rstrip("="),
        "wrapped base64": "\r\n".join(textwrap.wrap(plain, 76)) + "\r\n",
        "base64url": web,
        "bare base64url": web.rstrip("="),
    }


@pytest.mark.parametrize("form", forms(b""))
@pytest.mark.parametrize("cut", [0, 1, 2])
def test_each_form_is_told_by_what_it_is(form: str, cut: int) -> None:
    raw = QUOTE[: len(QUOTE) - cut]
    assert decode_text(forms(raw)[form]) == raw
    assert read_bytes(b"\n " + forms(raw)[form].encode() + b"\n") == raw
    assert read_bytes(raw) == raw


@given(st.binary(max_size=300))
def test_any_bytes_in_any_form(tail: bytes) -> None:
    """Behind a head with a letter beyond F in base64, which every vendor's form has."""
    raw = QUOTE[:5] + tail
    for text in forms(raw).values():
        assert decode_text(text) == raw


@pytest.mark.parametrize("text", ["a b c!", "é", "abc.def", "G", "0xgg!"])
def test_what_is_neither_is_malformed(text: str) -> None:
    with pytest.raises(MalformedError):
        decode_text(text)


@pytest.mark.parametrize(
    "text", ['{"a": 1}', "[1]", "<x/>", "-----BEGIN", "hello you!"]
)
def test_other_text_stays_what_it_is(text: str) -> None:
    assert read_bytes(text.encode()) == text.encode()


# ------------------------------------------------------------------------------ dstack


def compact(number: int) -> bytes:
    """SCALE's compact number."""
    for width, mode in ((1, 0), (2, 1), (4, 2)):
        if number < 1 << 8 * width - 2:
            return (number << 2 | mode).to_bytes(width, "little")
    raise AssertionError(number)


def scale(platform: int, signed: bytes, *chain: bytes) -> bytes:
    parts = [compact(len(signed)) + signed]
    if platform == 3:
        parts += [compact(len(chain)), *(compact(len(c)) + c for c in chain)]
    return bytes([0, platform]) + b"".join(parts) + b"logs and settings"


def messagepack(value: Any) -> bytes:
    """As dstack's library writes it: bytes are lists of numbers."""
    if isinstance(value, dict):
        pairs = b"".join(messagepack(k) + messagepack(v) for k, v in value.items())
        return bytes([0x80 | len(value)]) + pairs
    if isinstance(value, str):
        return b"\xd9" + bytes([len(value)]) + value.encode()
    if isinstance(value, bytes | list):
        body = b"".join(messagepack(each) for each in value)
        return b"\xdd" + len(value).to_bytes(4, "big") + body
    return bytes([value]) if value < 0x80 else b"\xcc" + bytes([value])


def version_1(kind: str, **found: Any) -> bytes:
    stack = {"kind": "dstack", "data": {"config": "{}"}}
    platform = {"kind": kind, "data": found}
    return messagepack({"version": 1, "platform": platform, "stack": stack})


def table(*entries: bytes) -> bytes:
    """A GHCB certificate table, as a host fills it."""
    at, head, body = 24 * (len(entries) + 1), b"", b"".join(entries)
    for each in entries:
        head += b"\x63" * 16 + struct.pack("<II", at, len(each))
        at += len(each)
    return head + bytes(24) + body


AUTHORITY = issue("An issuer of ours")
DER = AUTHORITY.der
PEM = AUTHORITY.certificate.public_bytes(Encoding.PEM)
REPORT = b"\2" + bytes(REPORT_BYTES - 1)
CONTAINERS = {
    "scale tdx": (scale(0, QUOTE), TdxBody(quote=QUOTE)),
    "scale short": (scale(0, b"abc"), TdxBody(quote=b"abc")),
    "scale snp": (
        scale(3, REPORT, DER, PEM * 20),
        SnpBody(report=REPORT, certificates=(DER,)),
    ),
    "scale snp of a host's table": (
        scale(3, REPORT, table(b"unknown", DER)),
        SnpBody(report=REPORT, certificates=(DER,)),
    ),
    "scale tdx of Google": (
        scale(1, QUOTE),
        TdxBody(quote=QUOTE),
    ),
    "messagepack tdx": (
        version_1("tdx", quote=QUOTE, event_log=[]),
        TdxBody(quote=QUOTE),
    ),
    "messagepack snp": (
        version_1("sev-snp", report=REPORT, cert_chain=[PEM], mr_config=""),
        SnpBody(report=REPORT, certificates=(DER,)),
    ),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_both_containers_of_dstack_are_read(name: str) -> None:
    raw, body = CONTAINERS[name]
    assert begins_container(raw)
    assert read_container(raw) == body


@pytest.mark.parametrize(
    "raw",
    [
        b"\0\2" + compact(3) + b"abc",
        b"\0\4" + compact(3) + b"abc",
        b"\0\5" + compact(3) + b"abc",
        scale(3, REPORT, b"der"),
        scale(3, REPORT, DER[:-1]),
        scale(3, REPORT, PEM[:-30]),
        scale(3, REPORT, table(DER)[:-1]),
        b"\0\0\x03",
        b"\0\0" + compact(9) + b"abc",
        b"\x81\x01\x01",
        messagepack(
            {"platform": {"kind": "nitro-enclave", "data": {"nsm_quote": b""}}}
        ),
        messagepack({"platform": {"kind": "tdx", "data": {"quote": 9}}}),
        messagepack({"platform": {"kind": "tdx", "data": {"quote": "a"}}}),
        b"\x81" * 99,
        b"\x81\xdd\xff\xff\xff\xff",
    ],
)
def test_no_container_is_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedError):
        read_container(raw)


@given(st.sampled_from([b"\0\0", b"\0\3", b"\x83", b"\x81\xa8platform"]), st.binary())
def test_any_container_is_read_or_malformed(head: bytes, tail: bytes) -> None:
    with contextlib.suppress(MalformedError):
        assert read_container(head + tail)
