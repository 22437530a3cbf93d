"""Who is at the other end of a link's socket: users, processes, and the order of looking."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sealift.channel.transports import pathsocket
from sealift.channel.transports.pathsocket import PathListener, dial_path
from sealift.errors import RefusedError
from sealift.link import handover
from tests.sim.linked import LinkedParties, Other, both

ROOT = Path(__file__).parents[2]


@pytest.fixture
def parties(tmp_path: Path) -> LinkedParties:
    return LinkedParties(tmp_path)


@pytest.mark.parametrize("end", ["owner", "device"])
def test_other_users_are_refused(parties: LinkedParties, end: str) -> None:
    other = {"peer_uid": 54321, "wait_s": 0.3}
    owner, device = (other, {}) if end == "owner" else ({}, other)
    here, there = both(parties, owner, device)
    assert (here if end == "owner" else there).code == "wrong-peer-user"


def test_nobody_stands_between(parties: LinkedParties) -> None:
    """A process that forwards every byte, of the session too, gets no memory."""
    front = parties.folder / "front.sock"
    words = [sys.executable, "-m", "tests.sim.between", str(front), str(parties.path)]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE) as between:
        assert between.stdout is not None
        between.stdout.readline()
        here, there = both(parties, {"path": front}, {})
        between.kill()
    assert there.code == "somebody-between"
    assert here.code == "link-refused"
    assert "somebody-between" in str(here)


def test_both_ends_look_who_is_there(
    parties: LinkedParties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner too, if the device would let somebody between pass."""
    front = parties.folder / "front.sock"
    words = [sys.executable, "-m", "tests.sim.between", str(front), str(parties.path)]
    seen = handover.peer_process
    calls: list[int] = []

    def once(sock: Any) -> int:
        calls.append(seen(sock))
        return os.getpid() if len(calls) == 1 else calls[-1]

    monkeypatch.setattr(handover, "peer_process", once)
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE) as between:
        assert between.stdout is not None
        between.stdout.readline()
        here, _ = both(parties, {"path": front}, {})
        between.kill()
    assert here.code == "somebody-between"


def test_the_user_is_looked_at_before_the_first_byte(parties: LinkedParties) -> None:
    for uid in (None, 54321):
        listener = PathListener(parties.path)
        try:
            if uid is None:  # the control
                dial_path(parties.path, 1).close()
                listener.accept(1).close()
                continue
            with pytest.raises(RefusedError) as caught:
                dial_path(parties.path, 1, peer_uid=uid)
            assert caught.value.code == "wrong-peer-user"
        finally:
            listener.close()
        listener = PathListener(parties.path, peer_uid=uid)
        with closing(listener), socket.socket(socket.AF_UNIX) as somebody:
            somebody.connect(str(parties.path))
            with pytest.raises(RefusedError) as caught:
                listener.accept(0.1)
            assert caught.value.code == "wrong-peer-user"
            assert somebody.recv(1) == b""


def test_a_stranger_does_not_take_the_owners_place(
    parties: LinkedParties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of another user, who comes first, is sent away, and the wait goes on."""
    came: list[socket.socket] = []

    def check(sock: socket.socket, uid: int | None) -> None:
        came.append(sock)
        if len(came) == 1:
            raise RefusedError("another user", code="wrong-peer-user")

    with closing(PathListener(parties.path)) as listener:
        monkeypatch.setattr(pathsocket, "check_peer_user", check)
        with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as s:
            first.connect(str(parties.path))
            waiting = Other(lambda: listener.accept(5))
            assert first.recv(1) == b""
            s.connect(str(parties.path))
            with waiting.join() as taken:
                assert taken is came[1]
