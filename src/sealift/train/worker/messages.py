"""What parent, zygote and worker say to each other (spec/recipe.md). No torch here.

Canonical JSON in the one strict codec. Whatever comes from a worker may come from a
recipe that has taken it over, so its reader names a limit and the kinds it expects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from sealift.codec import encode_named, from_plain, parse_named
from sealift.errors import MalformedError
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
