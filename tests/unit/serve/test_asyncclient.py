"""The client for asyncio, at a server behind its real door: concurrency, cancellation."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

import sealift
from sealift.errors import MalformedError, PeerError, UsageError
from sealift.serve.client import AsyncClient
from tests.sim.served import FORM, Served, rows
from tests.sim.startedserver import Started

ENDLESS = replace(FORM, max_steps=1 << 16)


class House(Started):
    """A server with one client for asyncio."""

    def __init__(self) -> None:
        super().__init__(Served(form=ENDLESS))

    @contextmanager
    def open(self) -> Iterator[AsyncClient]:
        with self.listening() as address:
            try:
                yield sealift.AsyncClient(address, self.served.policy())
            finally:
                self.model.gate.set()
                self.model.steps.set()

    @property
    def generations(self) -> int:
        scheduler = self.server._scheduler
        assert scheduler is not None
        with scheduler._changed:
            return len(scheduler._streams)

    @property
    def waiting(self) -> int:
        scheduler = self.server._scheduler
        assert scheduler is not None
        return scheduler.waiting()[0]

    def refused(self, code: str) -> int | float:
        return self.server.metrics.numbers().get(f"refused_{code}", 0)


async def until(met: Callable[[], bool]) -> None:
    """The loop runs meanwhile; were it blocked, nothing here would ever be met."""
    end = time.monotonic() + 300
    while not met() and time.monotonic() < end:
        await asyncio.sleep(0.002)
    assert met()


def in_house(body: Callable[[House, AsyncClient], Coroutine[Any, Any, None]]) -> None:
    house = House()

    async def visit(client: AsyncClient) -> None:
        async with client as model:
            await body(house, model)

    with house.open() as client:
        asyncio.run(visit(client))


def test_two_questions_wait_at_once_and_get_their_own_answers() -> None:
    async def body(house: House, model: AsyncClient) -> None:
        assert model.seen.model == "doubler"
        assert model.form.max_rows == 16
        house.model.gate.clear()
        first = asyncio.create_task(model.predict(rows(1.0)))
        await until(house.model.entered.is_set)
        second = asyncio.create_task(model.predict(rows(3.0)))
        await until(lambda: house.waiting == 1)
        assert not first.done()
        house.model.gate.set()
        found = await asyncio.gather(first, second)
        assert [each["y"].tolist() for each in found] == [[[2.0, 3.0]], [[6.0, 7.0]]]
        with pytest.raises(MalformedError):
            await model.predict(rows(1.0)[:, :1])

    in_house(body)


@pytest.mark.parametrize("cancelled", [True, False])
def test_a_cancelled_question_is_never_worked_on(cancelled: bool) -> None:
    """As the control one that nobody cancels."""

    async def body(house: House, model: AsyncClient) -> None:
        house.model.gate.clear()
        first = asyncio.create_task(model.predict(rows(1.0)))
        await until(house.model.entered.is_set)
        second = asyncio.create_task(model.predict(rows(2.0, 3.0)))
        await until(lambda: house.waiting == 1)
        scheduler: Any = house.server._scheduler
        (question,) = scheduler._queue.everything()
        if cancelled:
            second.cancel()
            await until(lambda: question.gone)
        house.model.gate.set()
        await first
        with suppress(asyncio.CancelledError):
            await second
        assert second.cancelled() == cancelled
        await until(lambda: house.waiting == 0)
        assert house.model.batches == ([[1]] if cancelled else [[1], [2]])
        assert house.refused("cancelled") == cancelled
        assert (await model.predict(rows(4.0)))["y"].tolist() == [[8.0, 9.0]]

    in_house(body)


def test_who_leaves_the_loop_ends_the_generation() -> None:
    async def body(house: House, model: AsyncClient) -> None:
        seen = []
        async with aclosing(model.generate(rows(1.0))) as steps:
            async for step in steps:
                seen.append(step["t"][0, 0])
                if len(seen) == 3:
                    break
        assert seen == [1.0, 2.0, 3.0]
        await until(lambda: house.generations == 0)
        assert house.model.dropped == [1]
        found = [step async for step in model.generate(rows(1.0), steps=2)]
        assert len(found) == 2

    in_house(body)


def test_a_cancelled_generation_gives_its_place_back() -> None:
    """While a thread waits for its next step; that thread is free again, too."""

    async def body(house: House, model: AsyncClient) -> None:
        house.model.steps.clear()

        async def read() -> None:
            async for _ in model.generate(rows(1.0)):
                pass

        reading = asyncio.create_task(read())
        await until(lambda: house.generations == 1)
        await asyncio.sleep(0.05)
        assert not reading.done()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        scheduler: Any = house.server._scheduler
        await until(lambda: scheduler._streams[0].question.gone)
        house.model.steps.set()
        await until(lambda: house.generations == 0)
        assert house.refused("cancelled") == 1
        await until(lambda: not model._found._pending._inbox)  # type: ignore[union-attr]
        assert (await model.predict(rows(4.0)))["y"].tolist() == [[8.0, 9.0]]

    in_house(body)


def test_closing_ends_whoever_waits() -> None:
    async def body(house: House, model: AsyncClient) -> None:
        house.model.gate.clear()
        asked = asyncio.create_task(model.predict(rows(1.0)))
        await until(house.model.entered.is_set)
        await model.aclose()
        with pytest.raises(PeerError):
            await asked

    in_house(body)


def test_a_cancelled_connection_leaves_no_session() -> None:
    house = House()

    async def visit(client: AsyncClient) -> None:
        entering = asyncio.create_task(client.__aenter__())
        await asyncio.sleep(0)
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        with pytest.raises(UsageError):
            _ = client.seen
        await until(lambda: not house.server._sessions)

    with house.open() as client:
        asyncio.run(visit(client))


def test_fresh_evidence() -> None:
    async def body(house: House, model: AsyncClient) -> None:
        await model.renew()
        assert (await model.predict(rows(4.0)))["y"].tolist() == [[8.0, 9.0]]

    in_house(body)


@contextmanager
def server_takes_nothing(model: AsyncClient) -> Iterator[Any]:
    """Somebody is in the midst of sending, and a cancellation cannot be sent either."""
    found: Any = model._found
    with found._pending._sending:
        yield found


@pytest.mark.parametrize("patient", [True, False])
def test_closing_waits_for_no_withdrawal(patient: bool) -> None:
    """Nor is it undone by who does not wait for it."""
    before = threads()

    async def body(house: House, model: AsyncClient) -> None:
        house.model.gate.clear()
        asked = asyncio.create_task(model.predict(rows(1.0)))
        await until(house.model.entered.is_set)
        with server_takes_nothing(model) as found:
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            closing = asyncio.create_task(model.aclose())
            await asyncio.sleep(0)
            if not patient:
                closing.cancel()
            await until(lambda: found._session._life.over)
            assert (await asyncio.wait([closing], timeout=300))[0]
            assert closing.cancelled() != patient
        await until(lambda: threads() <= before)

    in_house(body)


def threads() -> set[threading.Thread]:
    """Ours that run; other tests' may outlive them."""
    return {each for each in threading.enumerate() if each.name.startswith("sealift-")}


def test_who_goes_on_after_the_end_is_told_so() -> None:
    async def body(house: House, model: AsyncClient) -> None:
        steps = model.generate(rows(1.0))
        assert await anext(steps)
        await model.aclose()
        with pytest.raises(PeerError, match="closed"):
            await anext(steps)
        with pytest.raises(UsageError, match="not connected"):
            await model.predict(rows(1.0))
        await model.aclose()

    in_house(body)


@pytest.mark.parametrize("cancelled", [True, False])
def test_the_rest_of_a_cancelled_question_is_not_sent(cancelled: bool) -> None:
    """Its second part would be at the model before the server heard of its end."""

    async def body(house: House, model: AsyncClient) -> None:
        house.model.gate.clear()
        asked = asyncio.create_task(model.predict(rows(*map(float, range(20)))))
        await until(house.model.entered.is_set)
        if cancelled:
            asked.cancel()
            withdrawn: Any = model._found
            scheduler: Any = house.server._scheduler
            await asyncio.sleep(0.1)  # it is too late for the part that is worked on
            assert scheduler.waiting()[0] == 0
            assert withdrawn._pending._last_id == 1
        house.model.gate.set()
        with suppress(asyncio.CancelledError):
            await asked
        inbox: Any = model._found._pending._inbox  # type: ignore[union-attr]
        await until(lambda: not inbox)
        await asyncio.sleep(0.05)
        last_id = model._found._pending._last_id  # type: ignore[union-attr]
        assert last_id == (1 if cancelled else 2)
        assert house.model.batches == ([[16]] if cancelled else [[16], [4]])

    in_house(body)


def test_a_generation_that_is_thrown_at_ends_at_the_server() -> None:
    async def body(house: House, model: AsyncClient) -> None:
        steps = model.generate(rows(1.0))
        assert await anext(steps)
        threads: list[str] = []
        cancel = model._found._pending.cancel  # type: ignore[union-attr]

        def seen(id_: int) -> None:
            threads.append(threading.current_thread().name)
            cancel(id_)

        model._found._pending.cancel = seen  # type: ignore[union-attr,method-assign]
        with pytest.raises(ZeroDivisionError):
            await steps.athrow(ZeroDivisionError())
        await until(lambda: house.generations == 0)
        assert [name.split("_")[0] for name in threads] == ["sealift-withdrawal"]

    in_house(body)
