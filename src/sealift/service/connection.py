"""Connections that do not become requests: ended in time, and never too many.

uvicorn times what it answered, not what it waits for: a client that sends nothing, or one
byte of a head a minute, would keep its place for ever.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import ClassVar, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

from sealift.service.limits import Limits, address_key


class TimedProtocol(H11Protocol):
    """Ends a connection whose head does not come, and one too many.

    Attributes:
        limits: Of the server.
        by_address: Connections open now, by who counts as one.
    """

    limits: ClassVar[Limits] = Limits()
    by_address: ClassVar[Counter[str]] = Counter()
    _ends: asyncio.TimerHandle | None = None
    _counted = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count it, and end it at once if there are too many."""
        super().connection_made(transport)
        self._counted = address_key(self.client[0] if self.client else "")
        self.by_address[self._counted] += 1
        if self._is_one_too_many():
            transport.abort()
        else:
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Count it no more."""
        super().connection_lost(exc)
        self._stop_waiting()
        self.by_address[self._counted] -= 1
        if self.by_address[self._counted] <= 0:
            del self.by_address[self._counted]

    def data_received(self, data: bytes) -> None:
        """Stop the clock when a request is whole; a part of one does not."""
        super().data_received(data)
        if self._is_at_work():
            self._stop_waiting()
        elif self._ends is None:
            self._expect_head()

    def _is_one_too_many(self) -> bool:
        return (
            len(self.connections) > self.limits.connections
            or self.by_address[self._counted] > self.limits.connections_per_address
        )

    def _is_at_work(self) -> bool:
        cycle = cast(object | None, self.cycle)  # None before the first request
        return cycle is not None and not self.cycle.response_complete

    def _expect_head(self) -> None:
        self._ends = self.loop.call_later(self.limits.head_s, self._end)

    def _stop_waiting(self) -> None:
        if self._ends is not None:
            self._ends.cancel()
            self._ends = None

    def _end(self) -> None:
        self._ends = None
        if not self._is_at_work():
            self.transport.abort()


def make_protocol(limits: Limits) -> type[H11Protocol]:
    """The protocol class of one server, with its limits."""
    own = {"limits": limits, "by_address": Counter()}
    return type("TimedProtocol", (TimedProtocol,), own)
