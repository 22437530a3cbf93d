"""The ring between two ends: counts, waiting, and ends that lie about their count."""

from __future__ import annotations

import threading

import pytest

from sealift.channel.transport import memfd
from sealift.errors import MalformedError, PeerError
from tests.sim.memfdpair import memfd_pair


@pytest.fixture(params=[True, False], ids=["words", "bells"])
def ends(request, monkeypatch):
    """Both ways of counting: this machine's, and that of weakly ordered ones."""
    if request.param and not memfd.STORES_IN_ORDER:
        pytest.skip("this machine lacks the order of stores that words need")
    monkeypatch.setattr(memfd, "STORES_IN_ORDER", request.param)
    here, there = memfd_pair(slot_bytes=64, num_slots=3)
    yield here, there
    here.close()
    there.close()


@pytest.mark.parametrize("spin_s", [0.0, 50e-6])
def test_frames_arrive_in_order_over_many_turns(ends, spin_s):
    here, there = ends
    for end in (here, there):
        end._outgoing.spin_s = end._incoming.spin_s = spin_s
    frames = [n.to_bytes(4, "big") for n in range(500)]
    sender = threading.Thread(target=lambda: [here.send(frame) for frame in frames])
    sender.start()
    assert [there.receive(10) for _ in frames] == frames
    sender.join()


def test_several_frames_are_seen_before_any_is_given_back(ends):
    here, there = ends
    for frame in (b"a", b"b", b"c"):
        here.send(frame)
    assert [bytes(there.memory[at : at + n]) for at, n in there.ranges(3, 1)] == [
        b"a",
        b"b",
        b"c",
    ]
    with pytest.raises(PeerError, match="in time"):
        here.reserve(1, timeout_s=0.01)
    there.skip(2)
    here.send(b"d")
    assert [bytes(there.memory[at : at + n]) for at, n in there.ranges(2, 1)] == [
        b"c",
        b"d",
    ]


def test_what_was_sent_before_the_end_is_read_first(ends):
    here, there = ends
    here.send(b"last")
    here.close()
    assert there.receive(1) == b"last"
    with pytest.raises(PeerError) as caught:
        there.receive(1)
    assert caught.value.code == "peer-closed"


@pytest.mark.parametrize("count", [2**64 - 1, 4, 2**63])
def test_a_count_that_cannot_be_is_refused(count):
    here, there = memfd_pair(slot_bytes=64, num_slots=3)
    here._outgoing._words[here._outgoing._my_word] = count
    with pytest.raises(MalformedError) as caught:
        there.receive(1)
    assert caught.value.code == "bad-ring"
    here._outgoing._words[here._outgoing._their_word] = count
    with pytest.raises(MalformedError):
        here.send(b"x")
    here.close()
    there.close()
