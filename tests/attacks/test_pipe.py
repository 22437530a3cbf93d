"""A pipe under attack: nothing but the next record of this very pipe is opened.

Each attack has its control beside it: the same frames unharmed, or an end that lacks the
check, take what they are given.
"""

from __future__ import annotations

import itertools
import os
from types import SimpleNamespace

import pytest

from sealift.channel.record.frames import FrameOpener
from sealift.errors import (
    AuthenticationError,
    MalformedError,
    PeerError,
    SealiftError,
    StaleError,
)
from sealift.session import pipe as pipe_module
from sealift.session.pipe import Pipe
from tests.sim.attested import both
from tests.sim.pipes import (
    CAST,
    FRAME_BYTES,
    RECORD_BYTES,
    Tapped,
    line,
    pipes,
    tapped_pipes,
)
from tests.worlds.memorytransport import memory_pair

MESSAGE = os.urandom(3 * RECORD_BYTES + 10)  # frames 1 to 4; frame 0 is the hello
REFUSED = (AuthenticationError, StaleError, MalformedError)


def attempt(change, message=MESSAGE, expected_bytes=None):
    """Send over a line that ``change`` sits on; what was received."""
    (here, there), _ = tapped_pipes(change)
    found = bytearray(b"?" * (expected_bytes or len(message)))
    here.send(message)
    try:
        there.receive_into(found)
    except SealiftError:
        assert found == bytes(len(found)), "nothing of it may be left"
        assert_dead(there)
        raise
    return bytes(found)


def assert_dead(pipe):
    for call in (lambda: pipe.send(b"x"), lambda: pipe.receive_into(bytearray(1))):
        with pytest.raises(PeerError):
            call()


def flipping(frame_number, position, mask=1):
    def change(number, frame):
        if number == frame_number:
            flipped = bytearray(frame)
            flipped[position] ^= mask
            return [bytes(flipped)]
        return [frame]

    return change


def holding(first):
    """Exchange two neighbours."""
    held = []

    def change(number, frame):
        if number == first:
            held.append(frame)
            return []
        return [frame, held.pop()] if held else [frame]

    return change


def test_unharmed_it_arrives():
    assert attempt(None) == MESSAGE


@pytest.mark.parametrize("frame", [1, 2, 4])
@pytest.mark.parametrize("position", [0, 4, 8, 15, 16, 20, -16, -1])
def test_a_flipped_bit_anywhere_in_a_record(frame, position):
    with pytest.raises(REFUSED):
        attempt(flipping(frame, position))


@pytest.mark.parametrize("position", [7, 8, 20, 40, 60, 90, 127])
def test_a_flipped_bit_anywhere_in_a_hello(position):
    with pytest.raises(SealiftError):
        attempt(flipping(0, position))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda n, f: [] if n == 2 else [f], id="dropped"),
        pytest.param(lambda n, f: [f, f] if n == 1 else [f], id="repeated"),
        pytest.param(holding(2), id="reordered"),
        pytest.param(lambda n, f: [f[:-1]] if n == 3 else [f], id="cut"),
        pytest.param(lambda n, f: [f[:20]] if n == 3 else [f], id="cut short"),
        pytest.param(lambda n, f: [b""] if n == 3 else [f], id="emptied"),
        pytest.param(lambda n, f: [f + b"x"] if n == 4 else [f], id="longer"),
        pytest.param(
            lambda n, f: [b"z" * (FRAME_BYTES + 9)] if n == 2 else [f], id="another"
        ),
    ],
)
def test_whatever_is_done_to_the_order(change):
    with pytest.raises(SealiftError) as caught:
        attempt(change)
    assert isinstance(caught.value, REFUSED) or "frame" in str(caught.value)


def test_a_message_that_is_cut_at_a_record_is_waited_for_in_vain():
    with pytest.raises(PeerError) as caught:
        attempt(lambda number, frame: [] if number > 2 else [frame])
    assert caught.value.code == "peer-timeout"


@pytest.mark.parametrize("expected", [RECORD_BYTES, 2 * RECORD_BYTES, 7 * RECORD_BYTES])
def test_a_message_is_as_long_as_both_ends_say(expected):
    # Records end where the shorter message would: only the binding tells.
    with pytest.raises(REFUSED):
        attempt(None, os.urandom(3 * RECORD_BYTES), expected)


def test_the_final_bit_is_nobodys_to_set_or_clear():
    (here, there), tap = tapped_pipes(flipping(1, 4, 0x80))
    here.send(b"8 bytes!")  # as long as a final record
    with pytest.raises(AuthenticationError):
        there.receive_into(bytearray(8))
    (here, there), tap = tapped_pipes(flipping(1, 4, 0x80))
    here._seal(bytes(8), 0, 8, final=True)
    assert tap.seen[1][4] == 0x80  # it was there
    with pytest.raises(AuthenticationError):
        there.receive_into(bytearray(8))


def recorded(sessions):
    """The frames of a pipe that was, first end to second."""
    tap, far = line()
    here, there = pipes((tap, far), sessions)
    here.send(MESSAGE)
    there.receive_into(bytearray(len(MESSAGE)))
    return tap.seen


def replayed(sessions, frames):
    """A second end to which somebody plays recorded frames instead of the first's."""
    played, there = memory_pair(max_frame_bytes=FRAME_BYTES)
    for frame in frames:
        played.send(frame)
    pipe, found = (
        Pipe(sessions[1], there, b"test", timeout_s=1),
        bytearray(len(MESSAGE)),
    )
    pipe.receive_into(found)
    return bytes(found)


def test_a_former_pipe_of_the_same_session_is_not_this_one(monkeypatch):
    sessions = CAST.sessions()
    frames = recorded(sessions)
    with pytest.raises(AuthenticationError):
        replayed(sessions, frames)
    # The control: with a pipe's name that is not fresh, the old one plays.
    monkeypatch.setattr(Pipe, "_bound", lambda self, *place: b"")
    frames = recorded(sessions)
    assert replayed(sessions, frames) == MESSAGE


def test_a_record_of_another_pipe_does_not_fit():
    sessions = CAST.sessions()
    other = recorded(sessions)
    tap, there = line(lambda number, frame: [other[number] if number == 2 else frame])
    here, far = pipes((tap, there), sessions)
    here.send(MESSAGE)
    with pytest.raises(REFUSED):
        far.receive_into(bytearray(len(MESSAGE)))


def reflected(session):
    """An end whose own frames come back to it."""
    here, there = memory_pair(max_frame_bytes=FRAME_BYTES)

    def back(number, frame):
        there.send(frame)
        return []

    pipe = Pipe(session, Tapped(here, back), b"test", timeout_s=1)
    pipe.send(b"mine")
    found = bytearray(4)
    pipe.receive_into(found)
    return bytes(found)


@pytest.mark.parametrize("side", [0, 1])
def test_an_end_is_not_its_own_peer(side, monkeypatch):
    session = CAST.sessions()[side]
    with pytest.raises(AuthenticationError):
        reflected(session)
    # The control: with one key for both directions, it would be.
    real = session.export
    monkeypatch.setattr(session, "export", lambda label, context: real(label, b""))
    assert reflected(session) == b"mine"


def test_another_session_has_other_keys():
    mine, others = CAST.sessions(), CAST.sessions()
    tap, there = line()
    with pytest.raises(AuthenticationError):
        pipes((tap, there), (mine[0], others[1]))


def test_another_context_is_another_pipe():
    tap, there = line()
    with pytest.raises(AuthenticationError):
        pipes((tap, there), contexts=(b"gradients", b"parameters"))


def test_a_rekeyed_session_exports_other_keys():
    here, there = CAST.sessions()
    frames = recorded((here, there))

    def renew():
        here.rekey()
        here.send(b"renewed")

    assert both(renew, lambda: there.receive(60))[1] == b"renewed"
    with pytest.raises(AuthenticationError):
        replayed((here, there), frames)


def test_empty_records_do_not_hold_an_end_for_ever():
    # A peer with the key, who does not keep to the protocol.
    (here, there), _ = tapped_pipes()
    here._seal(b"", 0, 4)
    here._seal(b"data", 0, 4)
    with pytest.raises(MalformedError) as caught:
        there.receive_into(bytearray(4))
    assert caught.value.code == "bad-record-length"


def test_a_message_byte_by_byte_does_not_hold_an_end_for_ever(monkeypatch):
    # Each record comes in time, and the message never; a clock of 10 s a look.
    seconds = itertools.count(step=10.0)
    clock = SimpleNamespace(monotonic=lambda: next(seconds))
    monkeypatch.setattr(pipe_module, "time", clock)
    (here, there), _ = tapped_pipes()
    for offset in range(20):
        here._seal(b"d", offset, 20)
    with pytest.raises(PeerError) as caught:
        there.receive_into(bytearray(20))
    assert caught.value.code == "peer-timeout"
    assert caught.value.what == "the peer sends a message in parts that are too small"


def test_an_end_that_does_not_look_takes_the_repetition(monkeypatch):
    # The control of the tests above: what is wrong with these frames is their place.
    monkeypatch.setattr(
        FrameOpener,
        "open_into",
        lambda self, frame, out, bound=b"", *, final=False: None,
    )
    attempt(lambda n, f: [f, f] if n == 1 else [f], bytes(3 * RECORD_BYTES))
