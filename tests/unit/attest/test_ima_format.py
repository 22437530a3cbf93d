"""Both forms of an IMA list are brought back to what the kernel hashed."""

from __future__ import annotations

import hashlib

import pytest

from sealift.attest.tpm.ima import TEMPLATES, parse_ascii, parse_binary, parse_list
from sealift.errors import MalformedError
from tests.sim.imalist import Measured, ascii_list, binary, measured

DIGEST = b"sha256:\0" + bytes(range(32))
PATH = b"/usr/bin/true\0"
ENTRIES = (
    Measured("ima", (bytes(range(20)), b"/bin/true")),
    Measured("ima-ng", (DIGEST, PATH)),
    Measured("ima-sig", (DIGEST, PATH, b"")),
    Measured("ima-sig", (DIGEST, PATH, b"\x03\x02signature")),
    Measured("ima-buf", (DIGEST, b".ima\0", b"a key")),
    Measured("ima-modsig", (DIGEST, PATH, b"", DIGEST, b"pkcs7")),
    Measured("ima-modsig", (DIGEST, PATH, b"sig", b"", b"")),
    Measured("ima-ngv2", (b"ima:" + DIGEST, PATH)),
    Measured("ima-sigv2", (b"verity:" + DIGEST, PATH, b"sig")),
    Measured("ima-sig", (DIGEST, PATH, b""), violation=True),
)


def test_every_template_is_tried() -> None:
    assert {each.template for each in ENTRIES} == set(TEMPLATES)


def test_both_forms_give_the_bytes_that_were_hashed() -> None:
    shown = parse_list(binary(*ENTRIES)), parse_list(ascii_list(*ENTRIES))
    for found in shown:
        assert found.contents == [each.content for each in ENTRIES]
        assert found.templates == [each.template for each in ENTRIES]
        assert found.violations == {len(ENTRIES) - 1}


def test_fields() -> None:
    found = parse_list(binary(*ENTRIES))
    legacy, _, _, signed, buffer, *_ = (found.entry(n) for n in range(len(found)))
    assert (legacy.algorithm, legacy.path) == ("sha1", "/bin/true")
    assert signed.signature == b"\x03\x02signature"
    assert (signed.algorithm, signed.digest) == ("sha256", bytes(range(32)))
    assert (buffer.path, buffer.buffer) == (".ima", b"a key")
    assert found.entry(8).verity
    assert not found.entry(7).verity


def test_any_recorded_hash_length() -> None:
    entry = ENTRIES[2]
    recorded = hashlib.sha256(entry.content).digest()
    raw = entry.binary().replace(entry.recorded, recorded)
    assert parse_binary(raw, recorded_bytes=32).contents == [entry.content]
    with pytest.raises(MalformedError):
        parse_binary(raw, recorded_bytes=31)


def test_nothing_is_an_empty_list() -> None:
    assert len(parse_list(b"")) == 0


def test_cut_lists_are_refused() -> None:
    for entry in ENTRIES:
        raw = binary(entry)
        for end in range(1, len(raw)):
            with pytest.raises(MalformedError):
                parse_binary(raw[:end])


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(ENTRIES[1].binary(register=11), id="another register"),
        pytest.param(binary(Measured("evm-sig", (DIGEST, PATH))), id="template"),
        pytest.param(binary(Measured("ima-ng" * 99, (DIGEST, PATH))), id="long name"),
        pytest.param(b"11" + ascii_list(ENTRIES[1])[2:], id="another register, ascii"),
        pytest.param(ascii_list(Measured("evm-sig", (DIGEST, PATH))), id="ascii"),
        pytest.param(b"10 00 ima-ng\n", id="few words"),
        pytest.param(
            ascii_list(measured("/with space")).replace(b"h s", b"h_s"), id="_"
        ),
        pytest.param(b"10 zz ima-ng sha256:00 /x\n", id="no hex"),
        pytest.param(b"10 00 ima-ng sha256:00 /x\n", id="recorded length"),
        pytest.param(b"\xff" * 99, id="bytes"),
    ],
)
def test_what_is_no_list_is_refused(raw: bytes) -> None:
    with pytest.raises(MalformedError) as caught:
        parse_list(raw)
    assert caught.value.code == "ima-malformed"


@pytest.mark.parametrize(
    "entry",
    [
        Measured("ima-ng", (DIGEST, PATH, b"more")),
        Measured("ima-ng", (DIGEST,)),
        Measured("ima-ng", (DIGEST, b"/no/end")),
        Measured("ima-ng", (DIGEST, b"/two\0ends\0")),
        Measured("ima-ng", (DIGEST[:-1], PATH)),
        Measured("ima-ng", (b"sha3:\0" + bytes(32), PATH)),
        Measured("ima-ng", (bytes(20), PATH)),
        Measured("ima-ngv2", (b"evm:" + DIGEST, PATH)),
    ],
    ids=range(8),
)
def test_fields_that_do_not_fit_are_refused(entry: Measured) -> None:
    found = parse_binary(binary(entry))
    with pytest.raises(MalformedError):
        found.entry(0)


def test_ascii_with_a_wrong_recorded_hash_is_refused() -> None:
    """Control: the right one is taken."""
    line = ascii_list(ENTRIES[2])
    assert len(parse_ascii(line)) == 1
    with pytest.raises(MalformedError):
        parse_ascii(line.replace(b"true", b"fals"))
