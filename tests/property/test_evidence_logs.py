"""Whatever bytes a host sends as a log: they parse, or ``MalformedError`` says why not."""

from __future__ import annotations

import struct
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from sealift.attest.reference import ImaReferences
from sealift.attest.tpm import eventlog as tcglog
from sealift.attest.tpm import ima as ima
from sealift.attest.tpm import ima as imasig
from sealift.attest.tpm.ima import ImaState, advance
from sealift.errors import AuthenticationError, MalformedError
from tests.sim.examples import examples
from tests.sim.imalist import Measured, ascii_list, binary, register

DIGESTS = st.builds(
    lambda prefix, name, raw: prefix + name + b":\0" + raw,
    st.sampled_from([b"", b"ima:", b"verity:", b"x:"]),
    st.sampled_from([b"sha256", b"sha1", b"sha999"]),
    st.binary(min_size=30, max_size=33),
)
PATHS = st.binary(max_size=12).map(lambda raw: raw + b"\0")
ENTRIES = st.builds(
    lambda name, digest, path, rest, violation: Measured(
        name, (digest, path, *rest), violation
    ),
    st.sampled_from([name for name in ima.TEMPLATES if name != "ima"]),
    DIGESTS,
    PATHS,
    st.lists(st.binary(max_size=20), max_size=3),
    st.booleans(),
)
LISTS = st.lists(ENTRIES, max_size=4)


def changed(raw: bytes, at: int, byte: int) -> bytes:
    place = at % max(1, len(raw))
    return raw[:place] + bytes([byte]) + raw[place + 1 :]


CHANGES = st.tuples(st.integers(0, 1 << 16), st.integers(0, 255))


def spec_id() -> bytes:
    ids = struct.pack("<IHHHHB", 2, 0x0B, 32, 0x0C, 48, 0)
    content = b"Spec ID Event03\0" + struct.pack("<IBBBB", 0, 0, 2, 0, 2) + ids
    return struct.pack("<II20sI", 0, 3, bytes(20), len(content)) + content


def event(register_number: int, kind: int, content: bytes) -> bytes:
    head = struct.pack("<III", register_number, kind, 2)
    digests = struct.pack("<H32sH48s", 0x0B, b"a" * 32, 0x0C, b"b" * 48)
    return head + digests + struct.pack("<I", len(content)) + content


EVENTS = st.builds(
    event,
    st.integers(0, 24),
    st.sampled_from([1, 3, 4, 0x80000001]),
    st.one_of(st.binary(max_size=50), st.just(b"StartupLocality\0\x03")),
)
LOGS = st.lists(EVENTS, max_size=4).map(lambda parts: spec_id() + b"".join(parts))


@given(st.one_of(LOGS, st.binary(max_size=200)), CHANGES)
@examples(300)
def test_boot_logs(raw: bytes, change: tuple[int, int]) -> None:
    for each in (raw, changed(raw, *change), raw + b"\xff" * 9):
        with suppress(MalformedError):
            log = tcglog.parse(each)
            for bank in log.banks:
                for number in range(len(log.events)):
                    tcglog.covered(log.events[number], bank)
                log.replay(bank)
            tcglog.rtmrs(log)


@given(st.binary(max_size=200), LISTS, CHANGES)
@examples(300)
def test_ima_lists(
    junk: bytes, entries: list[Measured], change: tuple[int, int]
) -> None:
    raws = (junk, b"\n\0\0\0" + junk, b"10 " + junk, binary(*entries))
    for raw in (*raws, ascii_list(*entries), changed(binary(*entries), *change)):
        with suppress(MalformedError):
            found = ima.parse_list(raw)
            for number in range(len(found)):
                found.entry(number)


@given(LISTS)
def test_appraisal_refuses_or_raises_malformed(entries: list[Measured]) -> None:
    state = ImaState.at_boot("sha256")
    quoted = register(*entries)
    with suppress(MalformedError):
        found = ima.parse_list(binary(*entries))
        _, checks = advance(state, found, quoted, ImaReferences(allow={}))
        assert any(not each.passed for each in checks)


@given(st.binary(max_size=60))
def test_file_signatures(raw: bytes) -> None:
    with suppress(MalformedError, AuthenticationError):
        imasig.verify_file(b"\x03\x02" + raw, bytes(32), "sha256", ())
