"""Windows on the host: who waits helps, and nobody writes after an end."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from typing import Any

import numpy as np
import pytest

from sealift.data.loader import windows as windows_module
from sealift.data.loader.opening import Extent, OpenerPool
from sealift.data.loader.windows import HostWindows, WindowArena, WindowStream
from sealift.data.schedule.order import RowRun, Window
from sealift.errors import IntegrityError

ROW = 1 << 20
RUNS = 10  # groups have at least 2 MiB


class Recorder:
    """Opens nothing; says what it was told to, and fails where it shall."""

    def __init__(self, bad: Sequence[int] = ()) -> None:
        self.bad = bad
        self.seen: list[int] = []
        self.may = threading.Event()
        self.began = threading.Event()
        self.may.set()

    def open(self, extents: Sequence[Extent]) -> None:
        self.began.set()
        self.may.wait(300)
        self.seen += [extent.start // ROW for extent in extents]
        for extent in extents:
            if extent.start // ROW in self.bad:
                raise IntegrityError(f"row {extent.start // ROW}")

    def close(self) -> None:
        self.may.set()


def window(number: int = 0) -> Window:
    runs = tuple(RowRun(0, row, row + 1) for row in range(RUNS))
    return Window(number, number * RUNS, runs, np.arange(RUNS))


@pytest.fixture
def arena() -> Iterator[WindowArena]:
    arena = WindowArena(2, RUNS * ROW, shared=False)
    yield arena
    arena.close()


def test_who_waits_opens_what_nobody_began(arena: WindowArena) -> None:
    other, own = Recorder(), Recorder()
    other.may.clear()
    windows = HostWindows(arena, OpenerPool([other], own), ROW)
    pending = windows.begin(window(), 0)
    assert other.began.wait(300)
    done = threading.Thread(target=pending.wait)
    done.start()
    while len(own.seen) < RUNS - 2:  # all but the group that the other is at
        done.join(0.01)
    assert done.is_alive()  # and it waits for that
    other.may.set()
    done.join(300)
    assert sorted(other.seen) == [0, 1]
    assert sorted(own.seen + other.seen) == list(range(RUNS))
    windows.close()


def test_where_the_caller_opens_nothing_it_waits(arena: WindowArena) -> None:
    other = Recorder()
    windows = HostWindows(arena, OpenerPool([other], None), ROW)
    assert list(windows.begin(window(), 0).wait()) == list(range(RUNS))
    assert other.seen == list(range(RUNS))
    windows.close()


@pytest.mark.parametrize("bad", [(0, 9), (5, 9), (9,), (0,)])
def test_the_first_error_is_told_when_all_ended(
    arena: WindowArena, bad: tuple[int, ...]
) -> None:
    for others in ([], [Recorder(bad)], [Recorder(bad), Recorder(bad)]):
        own = Recorder(bad)
        windows = HostWindows(arena, OpenerPool(others, own), ROW)
        pending = windows.begin(window(), 0)
        with pytest.raises(IntegrityError, match=f"row {bad[0]}"):
            pending.wait()
        seen = [row for each in (own, *others) for row in each.seen]
        assert sorted(seen) == list(range(RUNS))
        windows.close()


def test_a_window_nobody_wants_is_not_opened_further(arena: WindowArena) -> None:
    other, own = Recorder(), Recorder()
    other.may.clear()
    windows = HostWindows(arena, OpenerPool([other], own), ROW)
    stream = WindowStream(iter([window()]), windows)
    stream._begin(until=1)
    assert other.began.wait(300)
    arena.part(0, 1)[0] = 1
    ending = threading.Thread(target=stream.close)
    ending.start()
    ending.join(0.2)
    assert ending.is_alive()  # the group that was begun may still be written to
    assert any(arena.part(0, 1))
    other.may.set()
    ending.join(300)
    assert (other.seen, own.seen) == ([0, 1], [])
    assert not any(arena.part(0, 1))
    windows.close()
    assert (other.seen, own.seen) == ([0, 1], [])


class Writer(Recorder):
    """Writes ones where it was told to open, when it may."""

    def __init__(self, arena: WindowArena) -> None:
        super().__init__()
        self.may.clear()
        self._arena = arena

    def open(self, extents: Sequence[Extent]) -> None:
        super().open(extents)
        for extent in extents:
            out = self._arena.part(extent.at, extent.end - extent.start)
            out[:] = bytes([1]) * len(out)


def interrupted(
    writer: Writer, windows: HostWindows, error: type[BaseException]
) -> None:
    """Ends while its writer is at the first group."""
    stream = WindowStream(iter([window(0), window(1)]), windows)
    late = threading.Timer(0.3, writer.may.set)
    late.start()
    with pytest.raises(error):
        next(stream)
    stream.close()  # as a loader does
    late.join()
    windows.close()


def test_an_interrupt_leaves_nobody_writing(
    arena: WindowArena, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while it waits for the last group; a notebook goes on with the loader."""
    original, calls = windows_module.wait, [0]

    def once_interrupted(futures: Sequence[Future[None]]) -> Any:
        calls[0] += 1
        if calls[0] == 1:
            raise KeyboardInterrupt
        return original(futures)

    monkeypatch.setattr(windows_module, "wait", once_interrupted)
    writer = Writer(arena)
    windows = HostWindows(arena, OpenerPool([writer], None), ROW)
    scrubs = watched(arena, writer, monkeypatch)
    interrupted(writer, windows, KeyboardInterrupt)
    assert writer.seen[:2] == [0, 1]  # it was at that when the stream failed
    assert scrubs[0] == (writer.seen, False)


@pytest.mark.parametrize("group", [0, 2])
def test_a_window_that_cannot_begin_leaves_nobody_writing(
    arena: WindowArena, monkeypatch: pytest.MonkeyPatch, group: int
) -> None:
    writer = Writer(arena)
    pool = OpenerPool([writer], None)
    windows = HostWindows(arena, pool, ROW)
    submit, calls = pool.submit, [0]

    def no_thread(extents: Sequence[Extent]) -> Future[None]:
        calls[0] += 1
        if calls[0] > 5 + group:  # the first window has five groups
            raise RuntimeError("can't start new thread")
        return submit(extents)

    monkeypatch.setattr(pool, "submit", no_thread)
    scrubs = watched(arena, writer, monkeypatch)
    interrupted(writer, windows, RuntimeError)
    assert writer.seen[:2] == [0, 1]  # it was at that when the stream failed
    assert scrubs[0] == (writer.seen, False)


def watched(
    arena: WindowArena, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[list[int], bool]]:
    """At each scrub: which rows were opened by then, and whether some are left after."""
    scrubs: list[tuple[list[int], bool]] = []
    scrub = arena.scrub

    def seen() -> None:
        scrub()
        left = any(arena.part(0, arena.total_bytes).tobytes())
        scrubs.append((list(writer.seen), left))

    monkeypatch.setattr(arena, "scrub", seen)
    return scrubs


def test_a_thread_too_many_waits_for_an_opener(arena: WindowArena) -> None:
    """Interrupted while it starts one, Python's pool starts another."""
    other = Recorder()
    other.may.clear()
    pool = OpenerPool([other], None)
    assert pool._threads is not None
    pool._threads._max_workers = 2
    both = [pool.submit([Extent(0, row * ROW, (row + 1) * ROW, 0)]) for row in (0, 1)]
    assert other.began.wait(300)
    assert wait(both, 0.2).done == set()
    other.may.set()
    assert [each.result(300) for each in both] == [None, None]
    assert sorted(other.seen) == [0, 1]
    pool.close()
