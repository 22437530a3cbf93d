"""A role's status: what it says, what is taken for one, and who shows an old one."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sealift.codec import encode
from sealift.errors import SealiftError, StaleError, UnavailableError
from sealift.events import Event
from sealift.health import reporting
from sealift.health.reporting import OTHER, Counts, Reporter
from sealift.health.server import STALE_S, answer
from sealift.health.status import (
    FILE,
    MAX_BYTES,
    MAX_COUNTS,
    Count,
    Status,
    read_status,
    write_status,
)

AT_S = 1_800_000_000.0
STATUS = Status(
    role="broker",
    at_s=AT_S,
    counts=(Count("release.granted", "", 2), Count("release.refused", "no-lease", 1)),
    gauges={"leases_open": 1},
)


def get(path: str, status: Status = STATUS, now_s: float = AT_S) -> tuple[int, str]:
    found = answer("GET", path, lambda: status, now_s)
    return found.status, found.body


def test_what_is_shown() -> None:
    assert get("/healthz") == (200, "ok\n")
    assert get("/readyz") == (200, "ready\n")
    status, body = get("/metrics")
    assert status == 200
    lines = [line for line in body.splitlines() if not line.startswith("#")]
    assert lines == [
        "sealift_releases_total 2",
        'sealift_refusals_total{rule="no-lease"} 1',
        'sealift_role_info{role="broker"} 1',
        "sealift_ready 1",
        "sealift_leases_open 1",
    ]
    assert body.endswith("\n# EOF\n")


def test_a_role_without_a_broker_says_how_it_is(tmp_path: Path) -> None:
    """In a process of its own: unready until others can work with it, and gone at its end."""
    program = """
import sys
from pathlib import Path
from sealift.events import Event, discard
from sealift.health.reporting import report_until_exit
from sealift.health.status import read_status
import sealift.health.reporting as r
r.EVERY_S = 0.01
folder = Path("status")
sink = report_until_exit(folder, "orchestrator", discard)
print(read_status(folder).unready)
sink(Event("orchestrator.listening", {"host": "secret.example"}))
sink(Event("role.arrived", {"name": "north"}))
while read_status(folder).unready or not read_status(folder).counts:
    pass
print(read_status(folder))
assert report_until_exit(None, "x", discard) is discard
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    first, then = ran.stdout.splitlines()
    assert first == "role-starting"
    assert "kind='role.arrived', rule='', number=1" in then
    assert "resident_bytes" in then
    assert "secret.example" not in then
    assert "north" not in then
    assert os.listdir(tmp_path / "status") == []


def test_not_ready() -> None:
    ended = Status(role="broker", at_s=AT_S, unready="agreement-superseded", gauges={})
    assert get("/readyz", ended) == (503, "not ready [agreement-superseded]\n")
    assert get("/healthz", ended) == (200, "ok\n")
    assert "sealift_ready 0" in get("/metrics", ended)[1]


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_an_old_status_is_no_health(path: str) -> None:
    assert get(path, now_s=AT_S + STALE_S - 1)[0] == 200  # control
    assert get(path, now_s=AT_S + STALE_S + 1)[0] == 503
    assert get(path, now_s=AT_S - STALE_S - 1)[0] == 503


@pytest.mark.parametrize("path", ["", "/", "/metrics/", "/../status.json", "/metrics?"])
def test_other_paths_show_nothing(path: str) -> None:
    assert get(path)[0] == 404


def test_nothing_is_written() -> None:
    assert answer("POST", "/metrics", lambda: STATUS, AT_S).status == 405


def test_there_and_back(tmp_path: Path) -> None:
    write_status(tmp_path, STATUS)
    assert read_status(tmp_path) == STATUS
    assert os.listdir(tmp_path) == [FILE]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{}",
        encode(STATUS).replace(b"broker", b'b\\"r'),
        encode(STATUS).replace(b"no-lease", b'x\\"} 1\\nsealift_ready 1'),
        encode(STATUS).replace(b"leases_open", b"leases open"),
        encode(STATUS)[:-1],
        b" " * (MAX_BYTES + 1),
    ],
)
def test_what_is_no_status(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / FILE).write_bytes(raw)
    with pytest.raises(SealiftError):
        read_status(tmp_path)
    assert answer("GET", "/metrics", lambda: read_status(tmp_path), AT_S).status == 503


@pytest.mark.parametrize(
    "make",
    [
        lambda place: None,
        lambda place: place.symlink_to("/etc/hostname"),
        lambda place: place.mkdir(),
        os.mkfifo,
    ],
)
def test_nothing_else_is_read(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / FILE)
    found = answer("GET", "/healthz", lambda: read_status(tmp_path), AT_S)
    assert found.status == 503


def test_strangers_do_not_make_names_without_end() -> None:
    counts = Counts()
    sink = counts.sink(lambda event: None)
    for number in range(2 * MAX_COUNTS):
        sink(Event("release.refused", {"rule": f"rule-{number}"}))
    sink(Event("release.granted", {"peer": "ada"}))
    sink(Event("something.else"))
    known = counts.known()
    assert len(known) <= MAX_COUNTS
    assert "ada" not in repr(known)
    assert sum(each.number for each in known) == 2 * MAX_COUNTS + 1
    assert any(each.rule == OTHER for each in known)
    Status(role="broker", at_s=AT_S, counts=known, gauges={})  # control: has places


def reporter(folder: Path, **changes: object) -> Reporter:
    terms: dict[str, object] = {
        "require_ready": lambda: None,
        "gauges": lambda: {"leases_open": 3},
        "clock": lambda: AT_S,
    }
    return Reporter(folder, "broker", Counts(), **{**terms, **changes})  # type: ignore[arg-type]


def test_a_role_says_how_it_is_and_at_its_end_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "status"
    with reporter(folder):
        assert read_status(folder).gauges == {"leases_open": 3}
    assert os.listdir(folder) == []


def test_a_role_that_can_release_nothing_says_why(tmp_path: Path) -> None:
    def refuse() -> None:
        raise StaleError("a later one is in force", code="agreement-superseded")

    with reporter(tmp_path, require_ready=refuse):
        assert read_status(tmp_path).unready == "agreement-superseded"


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space"), sqlite3.OperationalError("disk I/O")]
)
def test_what_fails_does_not_end_the_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(reporting, "EVERY_S", 0.01)
    tries: list[int] = []
    made = reporter(tmp_path)

    def full(folder: Path, status: Status) -> None:
        tries.append(1)
        if len(tries) > 3:
            made._ended.set()
        raise error

    with made:
        monkeypatch.setattr(reporting, "write_status", full)
        assert made._ended.wait(300)
    assert len(tries) > 3


def test_a_folder_that_cannot_be_written_is_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError) as caught, reporter(tmp_path / "file"):
        pass
    assert caught.value.code == "cannot-write"
