"""What every measurement is made of: processes that take orders, and repeats in turn."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from benchmarks.harness import Answer, End, Peer, serve
from benchmarks.report import interleaved
from sealift.errors import UnavailableError

pytestmark = pytest.mark.long


class Echo(End):
    """Says what it is told."""

    def twice(self, word: str) -> Iterator[Answer]:
        """Ready; then the word."""
        yield {}
        yield {"word": word}

    def through(self, first: socket.socket, second: socket.socket) -> None:
        """A byte through each of two sockets that came along."""
        for number, sock in enumerate((first, second)):
            with sock:
                sock.sendall(bytes([number]))

    def refuse(self) -> None:
        """An error of ours."""
        raise UnavailableError("nothing here", code="no-gpu")


def here(make: Callable[[], End]) -> tuple[Peer, threading.Thread]:
    mine, theirs = socket.socketpair()

    def served() -> None:
        with theirs:
            serve(theirs, make)

    thread = threading.Thread(target=served)
    thread.start()
    return Peer(mine), thread


def test_an_order_may_be_answered_twice_and_take_sockets_along() -> None:
    peer, thread = here(Echo)
    peer.tell("twice", word="a")
    pairs = [socket.socketpair() for _ in range(2)]
    peer.tell("through", *(there for _, there in pairs))
    assert [peer.hear(), peer.hear(), peer.hear()] == [{}, {"word": "a"}, {}]
    assert [mine.recv(1) for mine, _ in pairs] == [b"\0", b"\1"]
    for mine, _ in pairs:
        mine.close()
    peer.close()
    thread.join()


def test_an_error_at_the_other_end_has_its_code_here_and_ends_nothing() -> None:
    peer, thread = here(Echo)
    with pytest.raises(UnavailableError, match="nothing here") as caught:
        peer.ask("refuse")
    assert caught.value.code == "no-gpu"
    assert peer.ask("spent")["cpu_s"] > 0
    peer.close()
    thread.join()


def test_arms_take_turns_and_the_first_ones_do_not_count() -> None:
    order: list[str] = []

    def arm(name: str, *seconds: float) -> Callable[[], float]:
        left = iter(seconds)

        def one() -> float:
            order.append(name)
            return next(left)

        return one

    arms = {"a": arm("a", 9.0, 1.0, 3.0, 2.0), "b": arm("b", 9.0, 4.0, 4.0, 4.0)}
    spent = interleaved(arms, 3)
    assert order == ["a", "b"] * 4
    assert (spent["a"].median, spent["b"].seconds) == (2.0, [4.0] * 3)


def test_a_budget_repeats_until_there_are_as_many_as_there_may_be() -> None:
    arms = {"a": lambda: 1.0, "b": lambda: 1.0}
    spent = interleaved(arms, 1, budget_s=60.0, most=5)
    assert [len(each.seconds) for each in spent.values()] == [5, 5]
