"""Calls of both ends that come at the same time, too early, or not at all as they should."""

from __future__ import annotations

import socket
import threading
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sealift.channel.link.announcement import LinkKeys
from sealift.crypto.keys import TOKEN
from sealift.errors import MalformedError, PeerError, RefusedError, UsageError
from sealift.feed import handover, receiving, sending
from sealift.feed.form import OneCall
from sealift.feed.handover import FeedConnection
from sealift.feed.receiving import Receiver
from sealift.feed.sending import Sender
from tests.sim.linked import LinkedParties, Other, linked


def batch(number: int) -> dict[str, np.ndarray]:
    return {"x": np.full((4, 3), number, np.float32), "y": np.full(4, number)}


@pytest.fixture
def parties(tmp_path: Path) -> LinkedParties:
    return LinkedParties(tmp_path)


def test_no_batch_is_packed_over_another(parties: LinkedParties) -> None:
    with linked(parties) as (sender, receiver):
        got = Other(receiver.receive)
        packed, go_on = threading.Event(), threading.Event()
        hold_up(sender, packed, go_on)
        first = Other(lambda: sender.send(batch(1)))
        assert packed.wait(300)
        for second in (lambda: sender.send(batch(2)), lambda: sender.send_ahead([])):
            with pytest.raises(UsageError) as caught:
                second()
            assert caught.value.code == "link-in-use"
        go_on.set()
        first.join()
        assert got.join()["y"].tolist() == [1] * 4
        got = Other(receiver.receive)
        sender.send(batch(2))
        assert got.join()["y"].tolist() == [2] * 4


def hold_up(sender: Sender, packed: threading.Event, go_on: threading.Event) -> None:
    """What is sent waits between packing and sealing."""
    send = sender._link.send

    def held_up(source: Any) -> None:
        packed.set()
        assert go_on.wait(300)
        send(source)

    sender._link.send = held_up  # type: ignore[method-assign]


def test_two_calls_at_once_would_send_one_batch_twice(
    parties: LinkedParties, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OneCall, "__enter__", lambda self: None)  # the mutant
    monkeypatch.setattr(OneCall, "__exit__", lambda self, *exc: None)
    with linked(parties) as (sender, receiver):
        packed, go_on = threading.Event(), threading.Event()
        hold_up(sender, packed, go_on)
        sending = Other(lambda: sender.send(batch(1)))
        assert packed.wait(300)
        second = Other(lambda: sender.send(batch(2)))
        while sender._packed[64] != 2:  # where y begins
            pass
        go_on.set()
        for _ in range(2):
            found = receiver.receive()
            assert found is not None
            assert found["y"].tolist() == [2] * 4
        sending.join()
        second.join()


def test_what_feeds_does_not_send_by_itself(parties: LinkedParties) -> None:
    """It would wait for itself; what was before is sent, and the link goes on."""
    with linked(parties) as (sender, receiver):

        def source() -> Any:
            yield batch(1)
            sender.send(batch(99))

        got = Other(lambda: [receiver.receive(), receiver.receive()])
        with pytest.raises(UsageError) as caught:
            sender.send_ahead(source())
        assert caught.value.code == "link-in-use"
        sender.send(batch(2))
        assert [each["y"][0].item() for each in got.join()] == [1, 2]


def test_one_thread_receives(parties: LinkedParties) -> None:
    with linked(parties) as (sender, receiver):
        got = Other(receiver.receive)
        while not receiver._one_call._lock.locked():
            pass
        for call in (receiver.receive, lambda: receiver.receive_into(batch(0))):
            with pytest.raises(UsageError) as caught:
                call()
            assert caught.value.code == "link-in-use"
        sender.send(batch(1))
        assert got.join()["y"].tolist() == [1] * 4


def close_while_copied(receiver: Receiver) -> None:
    """Another thread closes when the batch verified, and is not copied yet."""
    views = receiver._views

    def and_close() -> Any:
        found = list(views())
        receiver.close()
        return iter(found)

    receiver._views = and_close  # type: ignore[method-assign]


@pytest.mark.parametrize("into", [False, True])
def test_what_was_overwritten_while_it_was_copied_is_no_batch(
    parties: LinkedParties, into: bool
) -> None:
    out = {"x": torch.ones(4, 3), "y": torch.ones(4, dtype=torch.int64)}
    with linked(parties) as (sender, receiver):
        close_while_copied(receiver)
        got = Other(lambda: receiver.receive_into(out) if into else receiver.receive())
        sender.send(batch(1))
        with pytest.raises(UsageError) as caught:
            got.join()
        assert caught.value.code == "dead-stream"


def test_zeroes_would_be_taken_for_a_batch(
    parties: LinkedParties, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Receiver, "_not_closed_meanwhile", lambda self: nullcontext())
    with linked(parties) as (sender, receiver):
        close_while_copied(receiver)
        got = Other(receiver.receive)
        sender.send(batch(1))
        assert got.join()["y"].tolist() == [0] * 4  # the mutant's


@pytest.mark.parametrize("depth", [0, -1])
def test_something_must_be_able_to_wait(parties: LinkedParties, depth: int) -> None:
    with linked(parties) as (sender, receiver):
        with pytest.raises(UsageError, match="a depth of"):
            sender.send_ahead([batch(1)], depth=depth)
        got = Other(receiver.receive)
        assert sender.send_ahead([batch(1)], depth=1) == 1
        got.join()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([1, 2], "it is a list"),
        (None, "it is a NoneType"),
        ({"x": torch.zeros(4, 3, dtype=torch.bfloat16)}, "x is Tensor torch.bfloat16"),
        ({"x": torch.zeros(4, 3, device="meta")}, "x is Tensor torch.float32"),
        ({"x": [[1.0], [1.0, 2.0]]}, "x is list"),
    ],
)
def test_what_is_no_batch_is_one_line(
    parties: LinkedParties, given: Any, said: str
) -> None:
    if isinstance(given, dict):
        given = {"y": np.zeros(4, np.int64)} | given
    with linked(parties) as (sender, _), pytest.raises(UsageError) as caught:
        sender.send(given)
    assert caught.value.code == "batch-differs"
    assert said in str(caught.value)


@pytest.mark.parametrize("form", [None, [], {"x": (["float32"], (1,))}])
def test_what_is_no_form_is_one_line(parties: LinkedParties, form: Any) -> None:
    for end in (parties.offer, parties.accept_link):
        with pytest.raises(UsageError) as caught:
            end(form, wait_s=0)
        assert caught.value.code == "bad-batch-form"


def test_whoever_leaves_in_the_handshake_is_told_of(parties: LinkedParties) -> None:
    waiting = Other(parties.accept_link)
    while True:
        with socket.socket(socket.AF_UNIX) as somebody:
            if somebody.connect_ex(str(parties.path)) == 0:
                break
    with pytest.raises(PeerError, match="connected to") as caught:
        waiting.join()
    assert caught.value.code == "peer-closed"


def test_a_device_that_leaves_before_it_consents_is_told_of(
    parties: LinkedParties, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(*terms: Any, **more: Any) -> None:
        raise MalformedError("no proposal")

    monkeypatch.setattr(receiving, "take_over", leave)
    device = Other(parties.accept_link)
    with pytest.raises(PeerError, match="listens at") as caught:
        parties.offer()
    assert caught.value.code in ("session-closed", "peer-closed")  # when it heard
    with pytest.raises(MalformedError):
        device.join()


def test_an_owner_that_hands_no_memory_over_is_told_of(
    parties: LinkedParties, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(*terms: Any) -> None:
        raise MalformedError("no memory")

    monkeypatch.setattr(sending, "offer_memory", leave)
    device = Other(parties.accept_link)
    with pytest.raises(MalformedError):
        parties.offer()
    with pytest.raises(PeerError, match="connected to") as caught:
        device.join()
    assert caught.value.code == "peer-closed"


def test_base_keys_are_wiped(
    parties: LinkedParties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device's as soon as it derived its streams, the owner's at the end."""
    made: list[LinkKeys] = []
    keys = FeedConnection.keys

    def noted(*terms: Any) -> LinkKeys:
        made.append(keys(*terms))
        return made[-1]

    monkeypatch.setattr(FeedConnection, "keys", noted)
    with linked(parties) as (sender, receiver):
        used = [usable(each) for each in made]
        assert sorted(used) == [False, True]
        got = Other(receiver.receive)
        sender.send(batch(1))
        got.join()
    assert [usable(each) for each in made] == [False, False]


def usable(keys: LinkKeys) -> bool:
    try:
        keys.to_device.reveal(TOKEN)
        keys.from_device.reveal(TOKEN)
    except UsageError:
        return False
    return True


@pytest.mark.parametrize(("seen", "refused"), [(0, True), (7, False)])
def test_a_process_that_the_kernel_does_not_name_is_nobody(
    monkeypatch: pytest.MonkeyPatch, seen: int, refused: bool
) -> None:
    """One of another namespace, which says that it is number 0."""
    monkeypatch.setattr(handover, "peer_process", lambda sock: seen)
    here, there = socket.socketpair()
    with closing(here), closing(there):
        connection = FeedConnection(None, None, here)  # type: ignore[arg-type]
        if not refused:  # the control
            connection.require_peer(seen)
            return
        with pytest.raises(RefusedError) as caught:
            connection.require_peer(seen)
        assert caught.value.code == "somebody-between"
