"""Boot logs made by hand: what a register begins with, and what is refused."""

from __future__ import annotations

import hashlib
import struct

import pytest

from sealift.attest.tpm.eventlog import covered, parse, rtmrs
from sealift.errors import MalformedError

SHA256, SHA384, SEPARATOR, NO_ACTION = 0x0B, 0x0C, 4, 3
SIZES = {0x04: 20, SHA256: 32, SHA384: 48, 0x12: 32}
NAMES = {0x04: "sha1", SHA256: "sha256", SHA384: "sha384"}


def header(*algorithms: int, vendor: bytes = b"", count: int | None = None) -> bytes:
    count = len(algorithms) if count is None else count
    content = b"Spec ID Event03\0" + struct.pack("<IBBBBI", 0, 0, 2, 0, 2, count)
    content += b"".join(
        struct.pack("<HH", each, SIZES.get(each, 9)) for each in algorithms
    )
    content += bytes([len(vendor)]) + vendor
    return struct.pack("<II20sI", 0, NO_ACTION, bytes(20), len(content)) + content


def event(register: int, kind: int, content: bytes, *algorithms: int) -> bytes:
    raw = struct.pack("<III", register, kind, len(algorithms))
    for each in algorithms:
        name = NAMES.get(each)
        made = hashlib.new(name, content).digest() if name else bytes(SIZES[each])
        raw += struct.pack("<H", each) + made
    return raw + struct.pack("<I", len(content)) + content


def extended(*contents: bytes, start: bytes = bytes(32)) -> bytes:
    value = start
    for content in contents:
        value = hashlib.sha256(value + hashlib.sha256(content).digest()).digest()
    return value


def locality(number: int) -> bytes:
    return event(0, NO_ACTION, b"StartupLocality\0" + bytes([number]), SHA256)


def test_pcr_0_begins_with_the_locality() -> None:
    first = event(0, 8, b"version", SHA256)
    for number in (0, 3, 4):
        log = parse(header(SHA256) + locality(number) + first)
        start = number.to_bytes(32)
        assert log.replay("sha256") == {0: extended(b"version", start=start)}
    assert parse(header(SHA256) + first).startup_locality() == 0


@pytest.mark.parametrize(
    "events",
    [
        pytest.param(locality(1), id="no such locality"),
        pytest.param(locality(3) + locality(3), id="twice"),
        pytest.param(event(0, 8, b"version", SHA256) + locality(3), id="late"),
        pytest.param(event(0, NO_ACTION, b"StartupLocality\0", SHA256), id="none"),
    ],
)
def test_locality_that_cannot_be_is_refused(events: bytes) -> None:
    with pytest.raises(MalformedError):
        parse(header(SHA256) + events).replay("sha256")


def test_no_action_extends_nothing_and_proves_nothing() -> None:
    log = parse(header(SHA256) + event(1, NO_ACTION, b"said", SHA256))
    assert log.replay("sha256") == {}
    assert covered(log.events[0], "sha256") is None


def test_unknown_algorithms_are_skipped() -> None:
    log = parse(header(SHA256, 0x12) + event(1, SEPARATOR, bytes(4), SHA256, 0x12))
    assert log.banks == ("sha256",)
    assert log.replay("sha256") == {1: extended(bytes(4))}


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(header(), id="no algorithm"),
        pytest.param(header(SHA256, SHA256), id="algorithm twice"),
        pytest.param(header(SHA256, count=2), id="other count"),
        pytest.param(header(SHA256) + event(1, 4, b"", SHA384), id="undeclared"),
        pytest.param(
            header(SHA256, SHA384) + event(1, 4, b"", SHA256), id="one missing"
        ),
        pytest.param(
            header(SHA256, SHA384) + event(1, 4, b"", SHA256, SHA256), id="digest twice"
        ),
        pytest.param(header(SHA256) + event(1, 4, b"x", SHA256)[:-1], id="cut"),
        pytest.param(header(SHA256) + b"\0\xff" * 8, id="padding of two kinds"),
        pytest.param(header(SHA256) + event(17, 4, b"", SHA256), id="DRTM"),
        pytest.param(header(SHA256) + event(24, 4, b"", SHA256), id="no PCR"),
        pytest.param(header(SHA256).replace(b"Event03", b"Event09"), id="no Spec ID"),
    ],
)
def test_what_is_no_log_is_refused(raw: bytes) -> None:
    with pytest.raises(MalformedError) as caught:
        parse(raw)
    assert caught.value.code in ("eventlog-malformed", "eventlog-register")


def test_a_long_log_of_one_register_is_read_once() -> None:
    # Looking for padding at each event (that begin with zeros, of PCR 0) took a minute.
    one = struct.pack("<II20sI", 0, 4, b"", 200) + bytes(200)
    raw = one * 13_000 + struct.pack("<II20sI", 0, 4, b"", 1) + b"x"
    log = parse(raw)
    assert (len(log.events), log.padding) == (13_001, 0)
    assert parse(raw + b"\0" * 9).padding == 9


def test_rtmrs_are_one_below_the_index() -> None:
    log = parse(header(SHA384) + event(1, 4, b"a", SHA384) + event(4, 4, b"b", SHA384))
    found = log.replay("sha384")
    assert rtmrs(log) == {0: found[1], 3: found[4]}


@pytest.mark.parametrize("index", [0, 5])
def test_no_log_extends_mrtd_or_more_than_four(index: int) -> None:
    with pytest.raises(MalformedError) as caught:
        rtmrs(parse(header(SHA384) + event(index, 4, b"a", SHA384)))
    assert caught.value.code == "eventlog-register"


def test_bank_that_the_log_lacks_is_refused() -> None:
    with pytest.raises(MalformedError) as caught:
        parse(header(SHA256)).replay("sha384")
    assert caught.value.code == "eventlog-bank"


def test_covered_is_what_was_hashed() -> None:
    def made(content: bytes, hashed: bytes) -> bytes:
        raw = event(8, 13, hashed, SHA256)
        head = raw[: 12 + 2 + 32]
        return header(SHA256) + head + struct.pack("<I", len(content)) + content

    name = "Boot".encode("utf-16-le")
    variable = bytes(16) + struct.pack("<QQ", 4, 5) + name + b"value"
    for content, hashed in (
        (b"all", b"all"),
        (b"text\0", b"text"),
        (b"grub_cmd: set a=b\0", b"set a=b"),
        (b"grub_cmd set a=b\0\x7f", b"set a=b"),
        (variable, b"value"),
        (b"tagg\x03\0\0\0abc", b"abc"),
    ):
        found = parse(made(content, hashed)).events[0]
        assert covered(found, "sha256") == hashed, content
    described = parse(made(b"/boot/vmlinuz", b"the file's bytes")).events[0]
    assert covered(described, "sha256") is None
