"""A firmware's event log beside the quote: it explains the boot registers, or is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sealift import codec
from sealift.attest import ReferenceValues
from sealift.attest.runtimelog import LABEL, MODULE, RuntimeEvent, replay
from sealift.attest.tpm import eventlog as tcglog
from sealift.attest.tpm.evidence import TpmBody
from sealift.attest.tpm.ima import template_data
from sealift.attest.tpm.registers import extend
from sealift.crypto.hash import digest
from sealift.errors import MalformedError
from tests.sim.tpmhost import AGENT, TpmHost, changed, examine, failed, tpm_host
from tests.worlds.softwarehost import binary_entry

pytestmark = pytest.mark.swtpm
SEPARATOR, BOOT_APPLICATION, NO_ACTION = 0x4, 0x80000003, 0x3
SHA256 = (0x0B).to_bytes(2, "little")
EVENTS = [
    (0, 0x8, b"firmware 1"),
    (4, BOOT_APPLICATION, b"a boot loader"),
    (7, SEPARATOR, bytes(4)),
]
MEASURED = (RuntimeEvent(MODULE, b"hidden"), RuntimeEvent(MODULE, b"sealift"))


def number(value: int, size: int = 4) -> bytes:
    return value.to_bytes(size, "little")


def event_log(events: list[tuple[int, int, bytes]]) -> bytes:
    """A crypto-agile log with SHA-256 only."""
    content = b"Spec ID Event03\0" + number(0) + bytes((0, 2, 0, 2)) + number(1)
    content += SHA256 + number(32, 2) + b"\0"
    raw = number(0) + number(NO_ACTION) + bytes(20) + number(len(content)) + content
    for register, kind, text in events:
        raw += number(register) + number(kind) + number(1)
        raw += SHA256 + digest("sha256", text) + number(len(text)) + text
    return raw


@dataclass(frozen=True)
class Booted:
    """A host whose firmware measured."""

    host: TpmHost
    references: ReferenceValues


@pytest.fixture(scope="module")
def booted() -> Iterator[Booted]:
    with tpm_host() as host:
        raw = event_log(EVENTS)
        path = host.folder / "events"
        path.write_bytes(raw)
        host.attester.close()
        host.tpm.reset()
        host.reopen(event_log=path)
        for register, _, text in EVENTS:
            extend(host.attester.client, register, {"sha256": digest("sha256", text)})
        values = {n: bytes(32) for n in range(10)} | tcglog.parse(raw).replay("sha256")
        measure_aggregate(host, values)
        host.kernel.run(AGENT, b"an agent")
        for event in MEASURED:
            host.attester.measure(event)
        pcrs = {str(n): (values[n],) for n in range(10)}
        yield Booted(host, host.references(pcrs=pcrs))


def measure_aggregate(host: TpmHost, values: dict[int, bytes]) -> None:
    aggregate = digest("sha256", *(values[n] for n in range(10)))
    content = template_data("ima-ng", b"sha256:\0" + aggregate, b"boot_aggregate\0")
    Path(host.folder / "ima").write_bytes(binary_entry(content))
    extend(host.attester.client, 10, {"sha256": digest("sha256", content)})


def codes(booted: Booted, log: bytes, **changes: object) -> set[str]:
    def swap(body: TpmBody) -> TpmBody:
        return TpmBody(**{**fields_of(body), "event_log": log, **changes})  # type: ignore[arg-type]

    evidence = changed(booted.host.evidence(), swap)
    return failed(examine(evidence, booted.references)) - {"tpm-clock-unsafe"}


def fields_of(body: TpmBody) -> dict[str, object]:
    return {name: getattr(body, name) for name in TpmBody.__dataclass_fields__}


def test_log_explains_the_boot_and_the_runtime_register(booted: Booted) -> None:
    evidence = booted.host.evidence()
    assert codes(booted, TpmBody.parse(evidence.body).event_log) == set()
    claims = examine(evidence, booted.references)
    assert claims.measurements["pcr4"] != bytes(32)
    assert claims.events == MEASURED


def test_runtime_log_is_found_again_behind_the_boot(booted: Booted) -> None:
    booted.host.reopen(event_log=booted.host.folder / "events")
    assert TpmBody.parse(booted.host.evidence().body).events == MEASURED


@pytest.mark.parametrize(
    "events",
    [
        [],
        EVENTS[1:],
        EVENTS[:2] + EVENTS[3:],
        [(4, 0x8, b"firmware 1"), *EVENTS[1:]],
        [(0, 0x8, b"firmware 2"), *EVENTS[1:]],
        [*EVENTS, (9, 0xD, b"one more file")],
        [*EVENTS, (4, BOOT_APPLICATION, b"another")],
    ],
)
def test_other_log_is_refused(
    booted: Booted, events: list[tuple[int, int, bytes]]
) -> None:
    assert codes(booted, event_log(events)) == {"tpm-event-log"}


def test_no_log_is_refused(booted: Booted) -> None:
    assert "tpm-event-log" in codes(booted, b"")


def test_events_do_not_hide_in_the_firmware_log(booted: Booted) -> None:
    # The replay of both logs one behind the other gives the quoted register.
    hidden = (15, 0x6, LABEL + codec.encode(MEASURED[0]))
    log = event_log([*EVENTS, hidden])
    start = tcglog.parse(log).replay("sha256")[15]
    quoted = TpmBody.parse(booted.host.evidence().body).registers()["sha256"][15]
    assert replay(MEASURED[1:], "sha256", start) == quoted
    assert codes(booted, log, events=MEASURED[1:]) == {"tpm-runtime-log"}
    assert codes(booted, log) == set()


def test_log_that_does_not_parse_is_refused(booted: Booted) -> None:
    with pytest.raises(MalformedError):
        codes(booted, event_log(EVENTS)[:-1])
