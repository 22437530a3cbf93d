"""Locks that note which of them a thread held when it took another.

`install` puts them where modules of `sealift.channel` and `sealift.release` make theirs.
A lock is named after the place that makes it (`channel.cuda.core.Core.lock`). Two that a
test run ever took in both orders can stop two threads for good, whether they met or not;
docs/reference/locks.md is the one order that is allowed.
"""

from __future__ import annotations

import ast
import linecache
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "reference" / "locks.md"
SOURCE = ROOT / "src"
ROOMS = ("sealift.channel.", "sealift.release.")
MAKERS = ("Lock", "RLock", "Condition")
OWNED = "sealift.channel.record.record"  # a lock around every call of a stream
Pair = tuple[str, str]

_ROW = re.compile(r"^\| `([\w.]+)` \|")
_TARGET = re.compile(r"([\w.]+)\s*(?::[^=]+)?=")
_real_lock, _real_rlock, _real_condition = (getattr(threading, m) for m in MAKERS)


class Recorder:
    """The pairs of locks that threads took, one while they held the other."""

    def __init__(self) -> None:
        self.pairs: dict[Pair, str] = {}
        self._mine = threading.local()

    def held(self) -> list[Noted]:
        """What the calling thread holds, in the order in which it was taken."""
        try:
            found: list[Noted] = self._mine.held
        except AttributeError:
            found = self._mine.held = []
        return found

    def taking(self, lock: Noted) -> None:
        """Before it is waited for: to wait is what can last for ever."""
        for other in self.held():
            pair = (other.name, lock.name)
            if other is not lock and pair not in self.pairs:
                self.pairs[pair] = os.environ.get("PYTEST_CURRENT_TEST", "")


class Noted:
    """A lock that tells the recorder; everything else is the real one's."""

    def __init__(self, name: str, real: Any, recorder: Recorder) -> None:
        self.name = name
        self._real = real
        self._recorder = recorder
        self._holder: list[Noted] = []  # the list of the thread that holds it

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if blocking:  # one that is only tried for waits for nobody
            self._recorder.taking(self)
        taken: bool = self._real.acquire(blocking, timeout)
        if taken:
            self._holder = self._recorder.held()
            self._holder.append(self)
        return taken

    def release(self) -> None:
        held = self._holder  # another thread may release it
        for at in range(len(held) - 1, -1, -1):
            if held[at] is self:
                del held[at]
                break
        self._real.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def locked(self) -> bool:
        found: bool = self._real.locked()
        return found

    # What a condition asks of a lock that may be held several times.

    def _is_owned(self) -> bool:
        found: bool = self._real._is_owned()
        return found

    def _release_save(self) -> Any:
        held = self._recorder.held()
        mine = [each for each in held if each is self]
        held[:] = [each for each in held if each is not self]
        return self._real._release_save(), mine

    def _acquire_restore(self, saved: Any) -> None:
        state, mine = saved
        self._recorder.taking(self)
        self._real._acquire_restore(state)
        self._holder = self._recorder.held()
        self._holder.extend(mine)


RECORDER = Recorder()  # of this process


def install(recorder: Recorder = RECORDER) -> None:
    """Note every lock that the two rooms make from now on."""

    def lock() -> Any:
        return _noted(_real_lock, recorder)

    def rlock() -> Any:
        return _noted(_real_rlock, recorder)

    def condition(lock: Any = None) -> Any:
        if lock is None:
            made = _noted(_real_rlock, recorder)
            lock = made if isinstance(made, Noted) else None
        return _real_condition(lock)

    for name, made in zip(MAKERS, (lock, rlock, condition), strict=True):
        setattr(threading, name, made)


def _noted(make: Callable[[], Any], recorder: Recorder) -> Any:
    frame = sys._getframe(2)
    module = frame.f_globals.get("__name__", "")
    if module == OWNED:  # it is told apart by who has it
        frame = sys._getframe(3)
        module = frame.f_globals.get("__name__", "")
    if not module.startswith(ROOMS):
        return make()
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    found = _TARGET.search(line)
    assert found is not None, f"{module} makes a lock without a name: {line.strip()}"
    owner = frame.f_code.co_qualname.partition(".")[0]
    return Noted(_name(module, owner, found[1]), make(), recorder)


def _name(module: str, owner: str, target: str) -> str:
    return ".".join((module.removeprefix("sealift."), owner, target.split(".")[-1]))


def locks_in_source() -> set[str]:
    """The name of every lock that the two rooms make, read from their code."""
    found = set()
    for room in ROOMS:
        for path in sorted((SOURCE / room.replace(".", "/")).rglob("*.py")):
            module = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
            if module == OWNED:
                continue
            for part in ast.parse(path.read_text()).body:
                owner = getattr(part, "name", "")
                found |= {_name(module, owner, each) for each in _made_in(part)}
    return found


def _made_in(part: ast.AST) -> Iterable[str]:
    for node in ast.walk(part):
        if isinstance(node, ast.Assign | ast.AnnAssign) and _makes(node.value):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            yield ast.unparse(target)


def _makes(value: ast.AST | None) -> bool:
    """Whether it makes a lock; a dataclass's factory counts."""
    if value is None:
        return False
    made = {f"threading.{name}" for name in MAKERS} | {"Life"}
    return any(
        isinstance(node, ast.Attribute | ast.Name) and ast.unparse(node) in made
        for node in ast.walk(value)
    )


def written_order(table: str) -> list[str]:
    """The names of the table's rows, outermost first."""
    return [found[1] for line in table.splitlines() if (found := _ROW.match(line))]


def wrong_pairs(pairs: Mapping[Pair, str], order: list[str]) -> list[str]:
    """What is not as the order says: one line for each pair.

    A pair of equal names is two locks of one kind: no order tells them apart.
    """
    rank = {name: number for number, name in enumerate(order)}
    found = []
    for (held, taken), test in sorted(pairs.items()):
        said = f"{taken} was taken while {held} was held, first by {test or 'nobody'}"
        if held == taken:
            found.append(f"{said}: another of its kind")
        elif held not in rank or taken not in rank:
            found.append(f"{said}: not in the table")
        elif rank[held] > rank[taken]:
            both = ", and the other way round" if (taken, held) in pairs else ""
            found.append(f"{said}: not in that order{both}")
    return found
