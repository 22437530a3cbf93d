"""A canonical event log of a real confidential VM."""

from __future__ import annotations

import base64

import pytest

from sealift.attest.formats import cel
from sealift.errors import MalformedError
from tests.sim.vectors import vector

pytestmark = pytest.mark.vectors


def raw_log() -> bytes:
    return base64.b64decode(vector("eventlog/gotpm_cel.b64"))


def test_records() -> None:
    log = cel.parse(raw_log())
    assert len(log.records) == 18
    assert {(each.bank, each.register) for each in log.records} == {("mr", 4)}
    assert {each.kind for each in log.records} == {cel.COS_CONTENT}
    kind, value = log.records[0].inner()
    assert kind == 0
    assert value.startswith(b"us-west1-docker.pkg.dev/")
    assert log.records[16].inner() == (10, b"ON")


def test_replay_begins_where_the_boot_log_ended() -> None:
    log = cel.parse(raw_log())
    fresh, later = log.replay("sha384"), log.replay("sha384", {4: b"\x01" * 48})
    assert fresh.keys() == later.keys() == {4}
    assert fresh != later
    with pytest.raises(MalformedError):
        log.replay("sha256")


def test_every_byte_is_refused_or_changes_what_is_proved() -> None:
    """The kind of register is covered by nothing: it only says which quote to ask."""
    raw = raw_log()
    whole = cel.parse(raw)
    for at in range(len(raw)):
        changed = raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]
        try:
            log = cel.parse(changed)
        except MalformedError:
            continue
        assert log.replay("sha384") != whole.replay("sha384"), at


def test_reordered_and_dropped_records_are_refused() -> None:
    raw = raw_log()
    end = 13 + 6 + 58 + 111  # number, register, digests, content of the first record
    assert len(cel.parse(raw[:end]).records) == 1
    for changed in (raw[end:], raw[:end] * 2):
        with pytest.raises(MalformedError):
            cel.parse(changed)
