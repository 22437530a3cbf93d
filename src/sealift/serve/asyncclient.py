"""The client of a served model for asyncio: threads below, and nobody's loop is blocked.

::

    async with sealift.AsyncClient(
        "server:7420", agreement="agreement.json", owner="lab.card.json"
    ) as model:
        one, other = await asyncio.gather(model.predict(a), model.predict(b))
        async for step in model.generate(a, steps=3): ...

It judges, asks and raises as ``client.Client`` does, in threads, as many as the server
takes questions of one client. Whatever is cancelled is withdrawn at the server, too:
the thread that waited for it ends with the server's next word.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, Self, TypeVar

from sealift.errors import PeerError, UsageError
from sealift.serve.client import Client, connect
from sealift.serve.clientpolicy import ClientPolicy, ServerFacts
from sealift.serve.pending import Arrays, Withdrawal
from sealift.train.output.modelform import ModelForm

MAX_THREADS: Final = 64
T = TypeVar("T")


class AsyncClient:
    """One session with a serving accelerator; a context, for tasks of one loop.

    Args:
        address: ``host:port``.
        policy: What the server must prove; or the arguments of ``load_policy``.
        terms: See ``connect``.
    """

    def __init__(
        self,
        address: str | tuple[str, int],
        policy: ClientPolicy | None = None,
        **terms: Any,
    ) -> None:
        self._dial = lambda: connect(address, policy, **terms)
        self._found: Client | None = None
        self._threads = ThreadPoolExecutor(1, "sealift-client")
        # Withdrawals do not queue behind what they withdraw.
        self._side = ThreadPoolExecutor(1, "sealift-withdrawal")

    @property
    def seen(self) -> ServerFacts:
        """What the server proved."""
        return self._client.seen

    @property
    def form(self) -> ModelForm:
        """What the model is asked and what it answers."""
        return self._client.form

    async def predict(self, rows: Arrays, **terms: Any) -> dict[str, Any]:
        """The model's answer to some rows; see ``Client.predict``."""
        client, withdrawal = self._client, Withdrawal()
        return await self._run(
            lambda: client.predict(rows, withdrawal=withdrawal, **terms),
            lambda _: self._aside(withdrawal.withdraw),
        )

    async def generate(
        self, rows: Arrays, **terms: Any
    ) -> AsyncGenerator[dict[str, Any]]:
        """The model's tokens, step by step; see ``Client.generate``.

        Closing the iterator (``contextlib.aclosing``) ends it at the server.
        """
        withdrawal = Withdrawal()
        stream = self._client.generate(rows, withdrawal=withdrawal, **terms)

        def abandon(step: Future[Any]) -> None:
            self._aside(withdrawal.withdraw)
            # While it is in its thread it cannot be closed.
            step.add_done_callback(lambda _: self._aside(stream.close))

        try:
            while step := await self._run(lambda: next(stream, None), abandon):
                yield step
        finally:
            self._aside(stream.close)  # unless it is in its thread: see above

    async def renew(self) -> None:
        """Demand fresh evidence; nobody may be waiting. See ``Client.renew``."""
        await self._run(self._client.renew, lambda _: None)

    async def aclose(self) -> None:
        """End the session; who still waits is told so."""
        found, self._found = self._found, None
        closer = ThreadPoolExecutor(1, "sealift-closing")  # behind no withdrawal
        try:
            if found is not None:
                closing = closer.submit(found.close)
                # Cancelled, only the wait is: the session ends all the same.
                await asyncio.wrap_future(closer.submit(closing.result))
        finally:
            for each in (closer, self._threads, self._side):
                each.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        try:
            self._found = await self._run(self._dial, _close_when_there)
        finally:
            self._threads.shutdown(wait=False)
        threads = min(self._found.max_waiting, MAX_THREADS)
        self._threads = ThreadPoolExecutor(threads, "sealift-client")
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    @property
    def _client(self) -> Client:
        if self._found is None:
            raise UsageError(
                "the client is not connected",
                fix="Use the client in an `async with` block",
            )
        return self._found

    async def _run(
        self, work: Callable[[], T], abandon: Callable[[Future[T]], object]
    ) -> T:
        """Its result, from a thread; ``abandon`` if nobody waits for it any more."""
        try:
            future = self._threads.submit(work)
        except RuntimeError:  # closed between two steps
            raise PeerError("the session is closed", code="session-closed") from None
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            abandon(future)
            raise

    def _aside(self, work: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # all is closed already
            self._side.submit(work)


def _close_when_there(dialled: Future[Client]) -> None:
    """Nobody waits for the session: end it as soon as it stands."""

    def close(done: Future[Client]) -> None:
        if not done.cancelled() and done.exception() is None:
            done.result().close()

    dialled.add_done_callback(close)
