"""What parent, zygote and worker say to each other, and how (spec/recipe.md). No torch.

Canonical JSON in the one strict codec. Whatever comes from a worker may come from a
recipe that has taken it over, so its reader names a limit and the kinds it expects. A
worker may neither send nor receive on sockets, only read and write, so its messages are
a length and bytes on a stream. The zygote gets descriptors along with an order.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from sealift.codec import encode_named, from_plain, parse_named
from sealift.errors import MalformedError, PeerError
from sealift.train.loop.states import TrainingState
from sealift.train.loop.tasks import SliceTask

MAX_ANSWER_BYTES: Final = 1 << 20
MAX_ORDER_BYTES: Final = 32 << 20
MAX_DEPTH: Final = 16

# parent -> zygote and back


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Fork a worker; its descriptors come along."""

    memory_bytes: int


@dataclass(frozen=True, slots=True)
class KillWorker:
    """End the worker at once."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The zygote has loaded torch and waits.

    Attributes:
        sandbox: What will keep a recipe in; it was tried.
        overwrites: Whether its allocators overwrite what is freed; it was tried.
    """

    sandbox: str
    overwrites: bool


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """The worker is gone, and its memory with it.

    Attributes:
        status: Exit code, or the negative number of a signal.
    """

    status: int


# parent -> worker and back


@dataclass(frozen=True, slots=True)
class StateSize:
    """How long the two parts of a training state are."""

    step: int
    tensors: int
    tree: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A task, and how long what comes with it is.

    Attributes:
        entry: Path of the recipe in the bundle.
        bundle: Bytes of the bundle's blob.
        states: Of each model, end to end; None for one that begins.
        statistics: Bytes behind them.
        area: Bytes of the area that states are handed over in.
    """

    task: SliceTask
    entry: str
    bundle: int
    states: tuple[StateSize | None, ...]
    statistics: int
    area: int


@dataclass(frozen=True, slots=True)
class Handed:
    """A model's state lies at the start of the area, and no step is under way."""

    model: int
    size: StateSize


@dataclass(frozen=True, slots=True)
class Importing:
    """A module of the bundle is about to run, for the first time in this process.

    Attributes:
        path: In the bundle.
    """

    path: str


@dataclass(frozen=True, slots=True)
class GoOn:
    """The parent has taken it, or measured it."""


@dataclass(frozen=True, slots=True)
class DoneModel:
    """See ``tasks.ModelDone``; its state lies in the area."""

    size: StateSize | None
    sums: tuple[float, ...]
    metrics: tuple[dict[str, float], ...]


@dataclass(frozen=True, slots=True)
class Done:
    """The task is finished; states and then sums lie in the area, end to end."""

    models: tuple[DoneModel, ...]
    statistics: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOrder:
    """A model to answer with, for as long as the parent asks.

    Attributes:
        entry: Path of the recipe in the bundle.
        bundle: Bytes of the bundle's blob.
        model: Bytes of the model, safetensors.
        form: Of the model, in its plain form.
        room: Bytes of the memory that questions come in.
        area: Bytes of the memory that answers go out in.
        threads: Of torch.
    """

    entry: str
    bundle: int
    model: int
    form: dict[str, Any]
    room: int
    area: int
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeStep:
    """One thing to do with the model.

    Attributes:
        work: ``predict`` the rows in the room, ``begin`` to generate from them, make
            the ``next`` step of a generation, or ``drop`` it.
        stream: Number of the generation.
        rows: Rows in the room.
    """

    work: Literal["predict", "begin", "next", "drop"]
    stream: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class ServeAnswer:
    """It is done; the rows lie in the area, none if a generation has ended."""

    rows: int


def size_of(state: TrainingState) -> StateSize:
    """How long a state is."""
    return StateSize(state.step, len(state.tensors), len(state.tree))


def to_bytes(message: object) -> bytes:
    """Canonical bytes of a message behind its name."""
    return encode_named(type(message).__name__, message)


def from_bytes(raw: bytes, *kinds: type, max_bytes: int = MAX_ANSWER_BYTES) -> object:
    """Parse a message of one of these kinds.

    Raises:
        MalformedError: if it is none of them.
    """
    name, body = parse_named(raw, max_bytes=max_bytes, max_depth=MAX_DEPTH)
    for kind in kinds:
        if kind.__name__ == name:
            return from_plain(kind, body, "body")
    raise MalformedError("another message than expected", code="bad-message")


LENGTH_BYTES: Final = 4
MAX_CONTROL_BYTES: Final = 4096
MAX_DESCRIPTORS: Final = 200
TIMED_OUT: Final = "worker-timeout"
GONE: Final = "worker-gone"
Left = Callable[[], float]


def write_framed(descriptor: int, raw: bytes, left_s: Left | None = None) -> None:
    """Write one message.

    Args:
        descriptor: Of a stream; one that does not block, if there is a limit.
        raw: The message.
        left_s: Seconds left for all of it; None to wait for ever.

    Raises:
        PeerError: code ``worker-gone`` or ``worker-timeout``.
    """
    left = memoryview(len(raw).to_bytes(LENGTH_BYTES, "big") + raw)
    while left:
        _await(descriptor, select.POLLOUT, left_s)
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:
            continue
        except OSError:
            raise _gone() from None


def read_framed(
    descriptor: int, *, max_bytes: int, left_s: Left | None = None
) -> bytes:
    """Read one message.

    Args:
        descriptor: Of a stream.
        max_bytes: Longest message that is read at all.
        left_s: Seconds left for all of it, however slowly it comes; None to wait for
            ever.

    Raises:
        PeerError: code ``worker-gone`` or ``worker-timeout``.
        MalformedError: if it would be longer.
    """
    length = int.from_bytes(_read(descriptor, LENGTH_BYTES, left_s), "big")
    if length > max_bytes:
        raise MalformedError(f"a message of {length} bytes", code="bad-message")
    return _read(descriptor, length, left_s)


def send_with(control: socket.socket, raw: bytes, descriptors: Sequence[int]) -> None:
    """Send one packet and descriptors along with it.

    Raises:
        PeerError: code ``worker-gone``.
    """
    try:
        socket.send_fds(control, [raw], list(descriptors))
    except OSError:
        raise _gone() from None


def receive_with(control: socket.socket) -> tuple[bytes, list[int]]:
    """Receive one packet and its descriptors; empty when the other end is closed."""
    try:
        raw, found, _flags, _address = socket.recv_fds(
            control, MAX_CONTROL_BYTES, MAX_DESCRIPTORS
        )
    except OSError:
        return b"", []
    return raw, found


def _read(descriptor: int, length: int, left_s: Left | None) -> bytes:
    found = bytearray()
    while len(found) < length:
        _await(descriptor, select.POLLIN, left_s)
        try:
            piece = os.read(descriptor, min(length - len(found), 1 << 16))
        except BlockingIOError:
            continue
        except OSError:
            piece = b""
        if not piece:
            raise _gone()
        found += piece
    return bytes(found)


def _await(descriptor: int, event: int, left_s: Left | None) -> None:
    """Wait until something can be read or written, while there is time left at all."""
    if left_s is None:
        return
    poll = select.poll()  # select() takes no descriptor above 1023
    poll.register(descriptor, event)
    seconds = left_s()
    if seconds <= 0 or not poll.poll(seconds * 1000):
        raise PeerError("the recipe's process takes too long", code=TIMED_OUT)


def _gone() -> PeerError:
    return PeerError("the recipe's process is gone", code=GONE)


NO_NAMESPACES: Final = 77
NOT_CONFINED: Final = 78
