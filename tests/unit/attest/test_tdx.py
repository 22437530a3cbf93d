"""TDX evidence of a made Intel: every field of a guest that decides (rule M7)."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

from sealift.attest import Evidence, ReferenceValues
from sealift.attest.level import Level, Tier
from sealift.attest.reference import AppraisalBasis
from sealift.attest.runtimelog import (
    CODE_BUNDLE,
    RuntimeEvent,
    event_digest,
    replay,
)
from sealift.attest.tdx.evidence import MEDIA_TYPE
from sealift.attest.tpm.eventlog import parse, rtmrs
from sealift.attest.verifier import require_passed
from sealift.errors import (
    MalformedError,
    PolicyError,
    RefusedError,
)
from sealift.ids import Digest
from tests.sim.made_chain import AT_S
from tests.sim.tdx_made import (
    BOUND,
    GOOD,
    QUOTE,
    REPORT_DATA,
    WORLD,
    changed,
    examine,
    failed,
    refused,
)

BOOT = {"tdx-rtmr"}  # of guests here that leave the boot's registers untouched


def ccel(extended: bytes) -> bytes:
    """A log of SHA-384 that claims one event of RTMR 3."""
    head = b"Spec ID Event03\0" + struct.pack("<IBBBBI", 0, 0, 2, 0, 2, 1)
    head += struct.pack("<HHB", 0xC, 48, 0)
    raw = struct.pack("<II20sI", 1, 3, b"", len(head)) + head
    return raw + struct.pack("<IIIH48sI", 4, 6, 1, 0xC, extended, 0)


def test_the_control_passes() -> None:
    claims = examine()
    require_passed(claims.checks)
    assert (claims.level, claims.trust.tier) == (Level.TEE, Tier.AFFIRMING)
    assert claims.attester == f"ppid:{bytes(range(16)).hex()}"


GUESTS: dict[str, tuple[dict[str, Any], str]] = {
    "debug": ({"attributes": 1 << 28 | 1}, "tdx-debug"),
    "other bits of debug": ({"attributes": 1 << 28 | 1 << 4}, "tdx-debug"),
    "migratable": ({"attributes": 1 << 28 | 1 << 29}, "tdx-migratable"),
    "faults on accepted memory": ({"attributes": 0}, "tdx-sept-ve"),
    "unknown attribute": ({"attributes": 1 << 28 | 1 << 50}, "tdx-attributes"),
    "no basic state": ({"xfam": 0x602E6}, "tdx-xfam"),
    "no SSE": ({"xfam": 0x602E5}, "tdx-xfam"),
    "half of AMX": ({"xfam": 0x202E7}, "tdx-xfam"),
    "half of AVX-512": ({"xfam": 0x602A7}, "tdx-xfam"),
    "AVX-512 without AVX": ({"xfam": 0x602E3}, "tdx-xfam"),
    "half of CET": ({"xfam": 0x60AE7}, "tdx-xfam"),
    "bounds (MPX)": ({"xfam": 0x602FF}, "tdx-xfam"),
    "ENQCMD": ({"xfam": 0x606E7}, "tdx-xfam"),
    "an unknown feature": ({"xfam": 0x602E7 | 1 << 19}, "tdx-xfam"),
    "the highest bit": ({"xfam": 0x602E7 | 1 << 63}, "tdx-xfam"),
    "processor trace": ({"xfam": 0x603E7}, "tdx-features"),
    "last branch records": ({"xfam": 0x682E7}, "tdx-features"),
    "user interrupts": ({"xfam": 0x642E7}, "tdx-features"),
    "CET": ({"xfam": 0x61AE7}, "tdx-features"),
    "other firmware": ({"mrtd": b"\x12" * 48}, "tdx-mrtd"),
    "other configuration": ({"mrconfigid": b"\1" + bytes(47)}, "tdx-mrconfigid"),
}


@pytest.mark.parametrize(("changes", "code"), GUESTS.values(), ids=GUESTS)
def test_a_guest_that_differs_is_refused(changes: dict[str, Any], code: str) -> None:
    claims = examine(changed(**changes))
    assert failed(claims) == {code}
    assert claims.trust.tier is not Tier.AFFIRMING
    with pytest.raises(PolicyError):
        require_passed(claims.checks)


def test_parties_say_which_features_a_guest_may_have() -> None:
    everything = WORLD.references(features=None)
    assert not failed(examine(changed(xfam=0x6DBE7), references=everything))
    assert failed(examine(changed(xfam=0x602E6), references=everything)) == {"tdx-xfam"}
    nothing = WORLD.references(features=())
    assert not failed(examine(changed(xfam=0b11), references=nothing))
    assert failed(examine(references=nothing)) == {"tdx-features"}
    claims = examine(changed(xfam=0b111), references=WORLD.references())
    assert not failed(claims)
    assert claims.measurements["xfam"] == bytes([7]) + bytes(7)
    (shown,) = [c.found for c in claims.checks if c.subject == "TDX extended features"]
    assert shown == "avx"


def test_debug_makes_memory_visible() -> None:
    trust = examine(changed(attributes=1 << 28 | 1)).trust
    assert (trust.hardware, trust.runtime_opaque) == (96, 96)


def test_features_that_do_not_decide_are_named() -> None:
    claims = examine(changed(attributes=1 << 28 | 1 << 30 | 1 << 63))
    assert not failed(claims)
    assert any("perfmon" in note for note in claims.notes)
    assert any("PKS" in note for note in claims.notes)


@pytest.mark.parametrize("number", range(3))
def test_another_boot_register_is_refused(number: int) -> None:
    rtmr = list(WORLD.guest.rtmr)
    rtmr[number] = b"\x99" * 48
    assert failed(examine(changed(rtmr=rtmr))) == {"tdx-rtmr"}


def test_unpinned_values_are_refused() -> None:
    unpinned = WORLD.references(mrtd=(), rtmr={}, mrconfigid=())
    found = failed(examine(references=unpinned))
    assert found == {"tdx-mrtd", "tdx-rtmr", "tdx-mrconfigid"}


def test_a_service_guest_is_refused_unless_agreed() -> None:
    world = changed(mrservicetd=b"\x77" * 48)
    quote = world.quote(REPORT_DATA, version=5, service=True)
    assert failed(examine(world, quote=quote)) == {"tdx-service-td"}
    agreed = WORLD.references(mrservicetd=(b"\x77" * 48,))
    assert not failed(examine(world, quote=quote, references=agreed))
    assert failed(examine(references=agreed)) == {"tdx-service-td"}


def test_references_may_allow_faults() -> None:
    lax = WORLD.references(sept_ve_disable=False)
    assert not failed(examine(changed(attributes=0), references=lax))


def test_a_register_without_its_events_is_refused() -> None:
    rtmr = [*WORLD.guest.rtmr[:3], b"\x33" * 48]
    claims = examine(changed(rtmr=rtmr))
    assert failed(claims) == {"tdx-log"}
    (log,) = [each for each in claims.checks if not each.passed]
    assert log.found.startswith("no events of Sealift")
    event = RuntimeEvent(CODE_BUNDLE, bytes(32))
    assert failed(examine(events=(event,))) == {"tdx-log"}


def test_events_do_not_hide_in_the_firmware_log() -> None:
    other, agreed = (RuntimeEvent(CODE_BUNDLE, bytes([i]) * 32) for i in (1, 2))
    world = changed(rtmr=[bytes(48)] * 4)
    for event in (other, agreed):
        world.guest.extend(event_digest(event, "sha384"))
    log = ccel(event_digest(other, "sha384"))
    start = rtmrs(parse(log))[3]
    assert replay((agreed,), "sha384", start) == world.guest.rtmr[3]
    assert failed(examine(world, events=(agreed,), ccel=log)) == BOOT | {"tdx-log"}
    refused("code-bundle-twice", world, events=(other, agreed), ccel=log)
    one = changed(rtmr=[bytes(48)] * 4)
    one.guest.extend(event_digest(agreed, "sha384"))
    assert failed(examine(one, events=(agreed,), ccel=log)) == BOOT


def test_code_bundle_is_compared() -> None:
    wanted = replace(WORLD.references(), code_bundle=Digest.of(b"code"))
    assert failed(examine(references=wanted)) == {"code-bundle-differs"}
    twice = (RuntimeEvent(CODE_BUNDLE, bytes(32)),) * 2
    refused("code-bundle-twice", events=twice)
    refused("code-bundle-twice", events=(RuntimeEvent(CODE_BUNDLE, b"short"),))


def test_platforms_are_pinned() -> None:
    ours = WORLD.references(platforms=(bytes(range(16)),))
    claims = examine(references=ours)
    assert not failed(claims)
    assert claims.trust.instance_identity == 2
    other = WORLD.references(platforms=(bytes(16),))
    assert failed(examine(references=other)) == {"tdx-platform"}


def test_unbound_is_refused() -> None:
    for bound in (None, bytes(32)):
        assert failed(examine(bound=bound)) == {"evidence-unbound"}


def test_without_references_nothing_is_right() -> None:
    with pytest.raises(PolicyError) as caught:
        examine(references=ReferenceValues())
    assert caught.value.code == "references-missing"


def test_an_sgx_quote_is_no_guest() -> None:
    quote = bytearray(QUOTE)
    quote[4] = 0
    with pytest.raises((RefusedError, MalformedError)):
        examine(quote=bytes(quote))


def test_a_body_that_does_not_parse() -> None:
    for body in (b"", b"{}", b'{"quote":""}'):
        with pytest.raises(MalformedError):
            WORLD.verifier().examine(
                Evidence("tdx", MEDIA_TYPE, body),
                AppraisalBasis(
                    bound=BOUND,
                    references=WORLD.references(),
                    collateral=GOOD,
                    at_s=AT_S,
                ),
            )
