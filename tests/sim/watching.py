"""A watch as brokers run it, for as long as a block lasts; whatever breaks it is raised."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sealift.events import Sink, discard
from sealift.travel.holder.watches import Look, Watcher


@contextmanager
def watching(look: Look, sink: Sink = discard) -> Iterator[Watcher]:
    broken: list[BaseException] = []
    watcher = Watcher("test", look, broken=broken.append, sink=sink)
    watcher.start()
    try:
        yield watcher
    finally:
        watcher.stop(5.0)
    assert not broken, broken
