"""What parent, zygote and worker say to each other, and how (spec/recipe.md). No torch.

Canonical JSON in the one strict codec. Whatever comes from a worker may come from a
recipe that has taken it over, so its reader names a limit and the kinds it expects.
``requests`` carries them between parent and worker; the zygote gets packets over a
socket, with descriptors along with an order.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from sealift.codec import encode_named, from_plain, parse_named
from sealift.errors import MalformedError, PeerError
from sealift.train.loop.states import TrainingState
from sealift.train.loop.tasks import SliceTask

MAX_REQUEST_BYTES: Final = 1 << 20
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
    """

    task: SliceTask
    entry: str
    bundle: int
    states: tuple[StateSize | None, ...]
    statistics: int


@dataclass(frozen=True, slots=True)
class Importing:
    """Asks to run a module of the bundle, for the first time in this process.

    Attributes:
        path: In the bundle.
    """

    path: str


@dataclass(frozen=True, slots=True)
class Handed:
    """Hands over a model's state, in the buffer; no step is under way."""

    model: int
    size: StateSize


@dataclass(frozen=True, slots=True)
class Metrics:
    """Tells numbers as soon as there are any.

    Attributes:
        model: Number of the model.
        place: Number of the window, or of the part that it was measured on.
        values: By name; see ``tasks.TaskParent.measured``.
    """

    model: int
    place: int
    values: dict[str, float]


@dataclass(frozen=True, slots=True)
class Done:
    """The answer to an assignment: states and then sums lie in the area, end to end.

    Attributes:
        states: Of each model; None for one that was measured.
        statistics: Bytes of the sums of each part.
    """

    states: tuple[StateSize | None, ...]
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
        threads: Of torch.
    """

    entry: str
    bundle: int
    model: int
    form: dict[str, Any]
    room: int
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


def from_bytes(raw: bytes, *kinds: type, max_bytes: int = MAX_REQUEST_BYTES) -> object:
    """Parse a message of one of these kinds.

    Raises:
        MalformedError: if it is none of them.
    """
    name, body = parse_named(raw, max_bytes=max_bytes, max_depth=MAX_DEPTH)
    for kind in kinds:
        if kind.__name__ == name:
            return from_plain(kind, body, "body")
    raise MalformedError("another message than expected", code="bad-message")


MAX_CONTROL_BYTES: Final = 4096
MAX_DESCRIPTORS: Final = 200
GONE: Final = "worker-gone"


def send_with(control: socket.socket, raw: bytes, descriptors: Sequence[int]) -> None:
    """Send one packet and descriptors along with it.

    Raises:
        PeerError: code ``worker-gone``.
    """
    try:
        socket.send_fds(control, [raw], list(descriptors))
    except OSError:
        raise worker_gone() from None


def receive_with(control: socket.socket) -> tuple[bytes, list[int]]:
    """Receive one packet and its descriptors; empty when the other end is closed."""
    try:
        raw, found, _flags, _address = socket.recv_fds(
            control, MAX_CONTROL_BYTES, MAX_DESCRIPTORS
        )
    except OSError:
        return b"", []
    return raw, found


def worker_gone() -> PeerError:
    """The error for a process that is not there any more."""
    return PeerError("the recipe's process is gone", code=GONE)


NO_NAMESPACES: Final = 77
NOT_CONFINED: Final = 78
