"""The processes of a measurement: started, ordered, answering and ended in one way.

An end is a class of this folder. Each of its public methods is an order; what it returns
is the answer. Both are a JSON line over a socket pair, along which descriptors travel too.
A method that yields answers more than once: first that it is ready, say, and then what came.
Nothing secret of a party crosses here but the bench's own keys: every process makes its
own identity.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from inspect import isgenerator
from pathlib import Path
from typing import Any, Final, Self

from sealift.errors import JobError, SealiftError, UnavailableError

Answer = dict[str, Any]
STOP_S: Final = 10.0
# Where an end finds this package: it may start in another folder.
_MODULES: Final = [
    str(Path(__file__).parents[1]),
    *filter(None, [os.environ.get("PYTHONPATH")]),
]
_PIECE_BYTES: Final = 1 << 16
_MAX_SOCKETS: Final = 4


class End:
    """A process's end: one public method per order."""

    def spent(self) -> Answer:
        """Processor seconds of this process so far."""
        return {"cpu_s": time.process_time()}

    def close(self) -> None:
        """End everything; nothing, for most."""


class Peer:
    """A process of the measurement, seen from here.

    Args:
        control: This process's end of the pair.
        child: The process; None if the other end is a thread of this one.

    Attributes:
        name: What errors call it.
        control: This end of the pair.
    """

    name = "a process of the measurement"

    def __init__(
        self, control: socket.socket, child: subprocess.Popen[bytes] | None = None
    ) -> None:
        self.child = child
        self.control = control
        self._lines = _lines(control)

    @classmethod
    def start(cls, end: type[End], *words: object, inside: Sequence[str] = ()) -> Self:
        """Start an end, made with words; ``inside`` a command, if there is one."""
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        command = [*inside, sys.executable, "-P", "-m", "benchmarks.harness"]
        told = [end.__module__, end.__qualname__, str(there.fileno()), *map(str, words)]
        with there:
            child = subprocess.Popen(  # noqa: S603 - our own module
                [*command, *told],
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(_MODULES)},
            )
        return cls(here, child)

    def tell(self, order: str, *sockets: socket.socket, **arguments: Any) -> None:
        """Send an order and go on; sockets are handed over, and closed here."""
        line = json.dumps({"do": order, "sockets": len(sockets), **arguments})
        try:
            if sockets:
                descriptors = [each.fileno() for each in sockets]
                socket.send_fds(self.control, [b" "], descriptors)
            self.control.sendall(line.encode() + b"\n")
        except OSError as error:
            raise self.gone() from error
        finally:
            for each in sockets:
                each.close()

    def hear(self) -> Answer:
        """The next answer to the oldest order.

        Raises:
            SealiftError: ``gone``, if the process ended; what it said stands on stderr.
            UnavailableError: with the process's own code, if it cannot.
        """
        try:
            answer, _ = next(self._lines)
        except (OSError, StopIteration) as error:
            raise self.gone() from error
        if "failed" in answer:
            why, code = answer["failed"]
            raise UnavailableError(f"{self.name} cannot go on", why=why, code=code)
        return answer

    def ask(self, order: str, *sockets: socket.socket, **arguments: Any) -> Answer:
        """Send an order and wait for its answer."""
        self.tell(order, *sockets, **arguments)
        return self.hear()

    def gone(self) -> SealiftError:
        """What is raised when it is not there any more."""
        return JobError("a process of the measurement ended", code="role-ended")

    def close(self) -> None:
        """Let it end; end it if it does not."""
        self.control.close()
        if self.child is None:
            return
        with suppress(subprocess.TimeoutExpired):
            self.child.wait(STOP_S)
        self.child.kill()
        self.child.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Peers:
    """Several processes that end together; a context manager."""

    def __init__(self) -> None:
        self._open = ExitStack()

    def start(self, end: type[End], inside: Sequence[str] = ()) -> Peer:
        """One more of them."""
        return self._open.enter_context(Peer.start(end, inside=inside))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()


def serve(control: socket.socket, make: Callable[[], End]) -> None:
    """Make an end, and do what it is told until whoever tells it is gone."""
    orders = _lines(control)
    try:
        end = make()
    except SealiftError as error:  # said to whoever asks first
        next(orders)
        _say(control, {"failed": [str(error), error.code]})
        return
    with closing(end):
        for order, sockets in orders:
            try:
                found = getattr(end, order.pop("do"))(*sockets, **order)
                for answer in found if isgenerator(found) else (found,):
                    _say(control, answer or {})
            except SealiftError as error:
                _say(control, {"failed": [str(error), error.code]})


def pack(raw: bytes) -> str:
    """Bytes in an order."""
    return base64.b64encode(raw).decode()


def unpack(text: str) -> bytes:
    """And back."""
    return base64.b64decode(text)


def _say(control: socket.socket, answer: Answer) -> None:
    control.sendall(json.dumps(answer).encode() + b"\n")


def _lines(control: socket.socket) -> Iterator[tuple[Answer, list[socket.socket]]]:
    """Every line, with the sockets that came along."""
    rest, came = b"", deque[socket.socket]()
    while True:
        piece, found, _, _ = socket.recv_fds(control, _PIECE_BYTES, _MAX_SOCKETS)
        came += [socket.socket(fileno=each) for each in found]
        if not piece:
            return
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            told = json.loads(line)
            yield told, [came.popleft() for _ in range(told.pop("sockets", 0))]


def main() -> None:
    """Be an end; arguments: module and class, descriptor, what it is made with."""
    _, module, name, descriptor, *words = sys.argv
    with socket.socket(fileno=int(descriptor)) as control:
        make = getattr(importlib.import_module(module), name)
        serve(control, lambda: make(*words))
    os._exit(0)  # threads that wait for a peer of theirs would wait on


if __name__ == "__main__":
    main()
