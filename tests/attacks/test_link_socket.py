"""Who is at the other end of a link's socket: users, processes, and the order of looking."""

from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sealift.channel.transport import unixsocket as pathsocket
from sealift.channel.transport.unixsocket import PathListener, dial_path, peer_process
from sealift.errors import RefusedError, UnavailableError
from sealift.feed import handover
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


@pytest.mark.distributed
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


@pytest.mark.distributed
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


@pytest.mark.distributed
def test_the_number_of_a_process_that_ended_is_nobodys(
    parties: LinkedParties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody listens, hands the socket on and ends; the number is free for another."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(parties.path))
        child = os.fork()
        if child == 0:
            listening.listen(1)
            os._exit(0)
        os.waitpid(child, 0)
        with dial_path(parties.path, 1) as sock:
            told = True
            try:
                sock.getsockopt(socket.SOL_SOCKET, pathsocket._PEER_PIDFD, 4)
            except OSError as error:
                told = error.errno != errno.ENOPROTOOPT
            assert peer_process(sock) == (0 if told else child)
            monkeypatch.setattr(pathsocket, "_peer_is_gone", lambda sock: False)
            assert peer_process(sock) == child  # the mutant
    parties.path.unlink()
    monkeypatch.undo()
    with closing(PathListener(parties.path)), dial_path(parties.path, 1) as sock:
        assert peer_process(sock) == os.getpid()  # the control


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
            waiting = Other(lambda: listener.accept(60))
            assert first.recv(1) == b""
            s.connect(str(parties.path))
            with waiting.join() as taken:
                assert taken is came[1]


def test_a_second_device_does_not_disturb_the_first(parties: LinkedParties) -> None:
    """It is refused, and the owner finds the one that was there."""
    first = Other(parties.accept_link)
    while not parties.path.exists():
        pass
    with pytest.raises(UnavailableError) as caught:
        parties.accept_link()
    assert caught.value.code == "cannot-listen"
    with closing(parties.offer()), closing(first.join()) as receiver:
        assert receiver.owner == "north"


@pytest.mark.parametrize("left", [False, True])
def test_of_several_devices_one_listens(parties: LinkedParties, left: bool) -> None:
    """None takes a socket for one that was left, which another one has just made."""
    for _ in range(100):
        if left:
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(str(parties.path))
        together = threading.Barrier(3)
        made: list[PathListener] = []

        def listen(together: threading.Barrier, made: list[PathListener]) -> None:
            together.wait()
            made.append(PathListener(parties.path))

        devices = [Other(lambda t=together, m=made: listen(t, m)) for _ in range(3)]
        refused = 0
        for device in devices:
            try:
                device.join()
            except UnavailableError:
                refused += 1
        for listener in made:
            listener.close()
        assert (len(made), refused) == (1, 2)
        assert not parties.path.exists()


@pytest.mark.parametrize("put", ["link", "socket", "nothing"])
def test_no_other_file_is_opened_to_other_users(
    parties: LinkedParties, monkeypatch: pytest.MonkeyPatch, put: str
) -> None:
    """Whoever can write the folder replaces the socket before its permissions come."""
    secret, bind = parties.folder / "north.key", pathsocket._bind
    secret.write_text("private")
    secret.chmod(0o600)
    theirs = socket.socket(socket.AF_UNIX)

    def and_replace(sock: socket.socket, path: Path) -> tuple[int, int]:
        made = bind(sock, path)
        assert stat.S_IMODE(path.lstat().st_mode) == 0o600  # from the beginning
        if put != "nothing":
            path.rename(parties.folder / "away")
        if put == "link":
            path.symlink_to(secret)
        if put == "socket":
            theirs.bind(str(path))
            path.chmod(0o600)
        return made

    monkeypatch.setattr(pathsocket, "_bind", and_replace)
    if put == "nothing":  # the control
        with closing(PathListener(parties.path, peer_uid=54321)):
            assert stat.S_IMODE(parties.path.stat().st_mode) == 0o666
    else:
        with pytest.raises(UnavailableError):
            PathListener(parties.path, peer_uid=54321)
        assert stat.S_IMODE(parties.path.stat().st_mode) == 0o600
        assert parties.path.is_symlink() == (put == "link")  # nor removed
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    theirs.close()
