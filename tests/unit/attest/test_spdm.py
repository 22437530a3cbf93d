"""Reports of NVIDIA devices: one form, and what their fields say."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sealift.attest.nvidia import evidence as spdm
from sealift.attest.nvidia.evidence import parse_report
from sealift.errors import MalformedError
from tests.sim.nvidia_device import SoftDevice

NONCE = bytes(range(32))


def test_a_report_is_read() -> None:
    """Control of everything below."""
    found = parse_report(SoftDevice(links=("01" * 8,)).report(NONCE))
    assert (found.kind, found.nonce, len(found.measurements)) == ("gpu", NONCE, 64)
    assert (found.driver, found.vbios) == ("545.00", "96.00.5E.00.01")
    assert found.neighbours == {"01" * 8}


@pytest.mark.parametrize(
    ("mode", "protected", "found"),
    [
        (b"\0\0", b"\x55", "spt"),
        (b"\1\0", b"\x55", "mpt"),
        (b"\2\0", b"\xaa", "ppcie"),
        (None, b"\xaa", "ppcie"),
        (None, b"\x55", "unstated"),
        (None, None, "unstated"),
    ],
)
def test_modes(mode: bytes | None, protected: bytes | None, found: str) -> None:
    fields = {spdm.FEATURE_MODE: mode, spdm.PROTECTED_PCIE: protected}
    assert parse_report(SoftDevice(fields=fields).report(NONCE)).mode == found


@pytest.mark.parametrize(
    ("mode", "protected"), [(b"\2\0", b"\x55"), (b"\0\0", b"\xaa"), (b"\3\0", b"\x55")]
)
def test_a_mode_that_contradicts_itself_is_refused(
    mode: bytes, protected: bytes
) -> None:
    fields = {spdm.FEATURE_MODE: mode, spdm.PROTECTED_PCIE: protected}
    with pytest.raises(MalformedError, match="contradictory"):
        parse_report(SoftDevice(fields=fields).report(NONCE))


# -------------------------------------------------------------------------- forms


def change(at: int, value: int) -> Callable[[bytes], bytes]:
    return lambda raw: raw[:at] + bytes([value]) + raw[at + 1 :]


@pytest.mark.parametrize(
    "edit",
    [
        lambda raw: b"",
        lambda raw: raw[:-1],
        lambda raw: raw + b"\0\1",
        lambda raw: raw + bytes(8192),
        change(0, 0x12),  # another version of SPDM
        change(2, 0x00),  # unsigned
        change(3, 0x01),  # one measurement
        change(36, 1),  # another key
        change(38, 0x7F),  # an error
        change(41, 63),
        change(42, 0),
        change(45, 2),  # first block's index
        change(46, 2),
        change(47, 50),
        change(49, 0x81),  # a raw value, not a digest
    ],
)
def test_a_report_of_another_form_is_refused(edit: Callable[[bytes], bytes]) -> None:
    raw = SoftDevice().report(NONCE)
    with pytest.raises(MalformedError):
        parse_report(edit(raw))


@pytest.mark.parametrize(
    "fields",
    [
        {spdm.DRIVER: None},
        {spdm.DRIVER: b"545/..\0"},
        {spdm.DRIVER: b""},
        {spdm.VBIOS: b"1234567"},
        {spdm.VBIOS: None},
        {spdm.PROJECT: b"10 10\0"},
        {spdm.FWID: bytes(32)},
        {spdm.SWITCH_PDI: bytes(9)},
    ],
)
def test_fields_of_another_form_are_refused(fields: dict[int, bytes | None]) -> None:
    with pytest.raises(MalformedError):
        parse_report(SoftDevice(fields=fields).report(NONCE))


def test_a_field_that_stands_twice_is_refused() -> None:
    raw = SoftDevice().report(NONCE)
    parsed = parse_report(raw)
    at = len(parsed.signed) - 6
    field = parsed.signed[at:]  # the last one: number, length, two bytes
    length = int.from_bytes(raw[45 + 3520 + 32 : 45 + 3520 + 34], "little")
    head = raw[: 45 + 3520 + 32] + (length + len(field)).to_bytes(2, "little")
    twice = head + parsed.signed[45 + 3520 + 34 :] + field + parsed.signature
    with pytest.raises(MalformedError, match="occur twice"):
        parse_report(twice)


def test_padding_goes_and_nothing_else_does() -> None:
    raw = SoftDevice().report(NONCE)
    parsed = parse_report(raw)
    assert parse_report(raw + bytes(3)) == parsed
    for more in (b"\0a", b"a"):
        with pytest.raises(MalformedError, match="after its signature"):
            parse_report(raw + more)
    with pytest.raises(MalformedError):
        parse_report(raw + bytes(8192))


def test_a_signature_that_ends_in_zeros_keeps_them() -> None:
    raw = SoftDevice().report(NONCE)[:-3] + bytes(3)
    for padded in (raw, raw + bytes(2)):
        assert parse_report(padded).signature == raw[-96:]
    with pytest.raises(MalformedError, match="too early"):
        parse_report(raw[:-1])
