"""What a service manager is told, and by whom."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sealift.events import Event, discard
from sealift.train.job.service import with_notices


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(60)
        yield listening


def test_ready_is_said_once_and_each_sentence_is_one_line(
    manager: socket.socket,
) -> None:
    """Text of others cannot look like a line of the protocol."""
    heard: list[Event] = []
    environment = {"NOTIFY_SOCKET": manager.getsockname()}
    sink = with_notices(heard.append, environment)
    assert environment == {}  # no child speaks for this process
    measured = Event("rank.measured", {"rows": 20, "metric.own.auc": 0.93})
    evil = Event("relay.lost", {"rejoin_s": 1.0, "line": "a\nREADY=1\nWATCHDOG=1"})
    ready = Event("broker.ready", {"broker": "north"})
    for each in (measured, evil, ready, ready):
        sink(each)
    assert heard == [measured, evil, ready, ready]
    said = [manager.recv(4096).decode().split("\n") for _ in range(3)]
    assert [len(lines) for lines in said] == [1, 2, 1]
    assert said[0][0].startswith("STATUS=")
    assert "a READY=1 WATCHDOG=1" in said[0][0]  # of the second event
    assert said[1][0] == "READY=1"
    assert said[2][0].startswith("STATUS=")


def test_signs_of_life_are_for_the_process_that_was_named(
    manager: socket.socket,
) -> None:
    at = manager.getsockname()
    for process in (str(os.getpid() + 1), str(os.getpid())):
        with_notices(
            discard,
            {
                "NOTIFY_SOCKET": at,
                "WATCHDOG_USEC": "600000000",
                "WATCHDOG_PID": process,
            },
        )
    assert manager.recv(4096) == b"WATCHDOG=1"
    manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.recv(4096)


def test_without_a_manager_nothing_changes_and_a_lost_one_ends_nothing(
    tmp_path: Path,
) -> None:
    assert with_notices(discard, {}) is discard
    sink = with_notices(discard, {"NOTIFY_SOCKET": str(tmp_path / "gone")})
    sink(Event("broker.ready", {"broker": "north"}))
