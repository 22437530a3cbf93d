"""Clients that take their tokens slowly, or not at all, over real sockets (V15, V16).

Beside each attack stands its control: without the bound it keeps the others out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace

import pytest

from sealift.channel.transport.tcp import TcpListener
from sealift.data.schema.schema import Field, Schema
from sealift.errors import PeerError
from sealift.serve.client import Client, connect
from sealift.train.job.settings import ServingTable
from sealift.train.output.modelform import Fields
from tests.sim.served import FORM, Doubler, Served, rows

pytestmark = pytest.mark.timeout(60)
WIDTH = 1 << 16
ROWS = rows(*range(1, 17))  # tokens of 4 MiB a step: no system keeps many of those
TOKENS = Fields(Schema((Field("t", "float32", (WIDTH,)),)), {"t": 0})
FOR_EVER_S = 1000.0


@dataclass
class Attacked(Served):
    """A server with a port, whose clients say who they are."""

    sessions: list[threading.Thread] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    @contextmanager
    def listening(self) -> Iterator[TcpListener]:
        listener = TcpListener()
        door = threading.Thread(target=self._accept, args=(listener,), daemon=True)
        door.start()
        try:
            with self.running():
                yield listener
        finally:
            listener.close()
            for each in (door, *self.sessions):
                each.join(10)
                assert not each.is_alive()

    def _accept(self, listener: TcpListener) -> None:
        with suppress(PeerError):
            while True:
                words = (listener.accept(), None, self.names.pop(0))
                each = threading.Thread(target=self.serve, args=words, daemon=True)
                self.sessions.append(each)
                each.start()

    def meet(self, listener: TcpListener, name: str) -> Client:
        self.names.append(name)
        return connect(listener.address, self.policy())


def attacked(*, stall_s: float, streams_each: int = 0, request_s: float) -> Attacked:
    patient = {"stall_s": stall_s, "request_s": request_s}  # of any length
    settings = ServingTable(streams=4, streams_each=streams_each, max_delay_ms=0.0)
    served = Attacked(
        form=replace(FORM, tokens=TOKENS, max_steps=200),
        settings=settings.model_copy(update=patient),
        model=Doubler(WIDTH),
    )
    unhurried = {**patient, "request_s": FOR_EVER_S}
    served.scheduler._settings = settings.model_copy(update=unhurried)
    return served


def stall(client: Client) -> Iterator[object]:
    """Ask for tokens, and take the first one only."""
    stream = client.generate(ROWS)
    next(stream)
    return stream


def places(served: Served) -> int:
    with served.scheduler._changed:
        return len(served.scheduler._streams)


def wait_until_all_stall(served: Served, number: int) -> None:
    until = time.monotonic() + 300
    while time.monotonic() < until:
        with served.scheduler._changed:
            found = [each.question.room() for each in served.scheduler._streams]
        if len(found) == number and not any(found):
            return
        time.sleep(0.01)
    raise AssertionError("they do not stall")


@contextmanager
def besieged(served: Attacked, names: list[str]) -> Iterator[tuple[list, TcpListener]]:
    """Four clients take a place each, and then nothing more."""
    with served.listening() as listener, ExitStack() as stack:
        streams = []
        for name in names:
            client = stack.enter_context(served.meet(listener, name))
            streams.append(stall(client))
        wait_until_all_stall(served, 4)
        yield streams, listener


def test_four_that_take_nothing_do_not_keep_out_a_fifth() -> None:
    served = attacked(stall_s=0.5, request_s=20.0)
    with besieged(served, ["a", "b", "c", "d"]) as (streams, listener):
        with served.meet(listener, "fifth") as fifth:
            assert len(list(fifth.generate(ROWS, steps=3, timeout_s=20.0))) == 3
        assert served.metrics.numbers()["refused_tokens_not_taken"] == 1
        assert places(served) == 3  # who keeps nobody out is waited for
        ends = [end_of(stream) for stream in streams]
        (ended,) = (each for each in ends if each)  # the others went on
        assert ended.code == "tokens-not-taken"
        assert "not read in time" in str(ended)
        assert served.model.dropped


def end_of(stream: Iterator[object]) -> PeerError | None:
    """What ends a stream within some steps more than there is room for."""
    try:
        for _ in range(20):
            next(stream)
    except PeerError as error:
        return error
    return None


def test_control_without_the_bound_they_do() -> None:
    served = attacked(stall_s=FOR_EVER_S, request_s=1.5)
    with (
        besieged(served, ["a", "b", "c", "d"]) as (_, listener),
        served.meet(listener, "fifth") as fifth,
    ):
        with pytest.raises(PeerError) as caught:
            list(fifth.generate(ROWS, steps=3, timeout_s=20.0))
        assert caught.value.code == "request-timeout"
        assert places(served) == 4


def test_four_that_take_a_little_now_and_then_do_not_either() -> None:
    """Each takes something more often than ``stall_s``: it is the sum that counts."""
    served = attacked(stall_s=1.0, request_s=20.0)
    with besieged(served, ["a", "b", "c", "d"]) as (streams, listener):
        over = threading.Event()

        def sip(stream: Iterator[object]) -> None:
            with suppress(PeerError):
                while not over.wait(0.3):
                    next(stream)

        sippers = [threading.Thread(target=sip, args=(each,)) for each in streams]
        for each in sippers:
            each.start()
        try:
            with served.meet(listener, "fifth") as fifth:
                assert len(list(fifth.generate(ROWS, steps=3, timeout_s=20.0))) == 3
        finally:
            over.set()
            for each in sippers:
                each.join(20)


@pytest.mark.parametrize("streams_each", [0, 4])
def test_one_that_comes_often_leaves_a_place(streams_each: int) -> None:
    """All but one if not said; as the control, all: then the fifth waits in vain."""
    request_s = 1.5 if streams_each else 20.0
    served = attacked(
        stall_s=FOR_EVER_S, streams_each=streams_each, request_s=request_s
    )
    with served.listening() as listener, ExitStack() as stack:
        kept: list[object] = []
        for _ in range(4):
            client = stack.enter_context(served.meet(listener, "greedy"))
            words = (client, kept)
            threading.Thread(target=_stall_later, args=words, daemon=True).start()
        wait_until_all_stall(served, streams_each or 3)
        fifth = stack.enter_context(served.meet(listener, "fifth"))
        if not streams_each:
            assert len(list(fifth.generate(ROWS, steps=3, timeout_s=20.0))) == 3
            return
        with pytest.raises(PeerError) as caught:
            list(fifth.generate(ROWS, steps=3, timeout_s=20.0))
        assert caught.value.code == "request-timeout"


def _stall_later(client: Client, kept: list[object]) -> None:
    """Not every one of them gets a place."""
    with suppress(PeerError):
        kept.append(stall(client))
