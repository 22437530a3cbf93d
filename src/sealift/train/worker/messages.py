"""What a worker and its parent say to each other, and what of it is believed. No torch.

Canonical JSON in the one strict codec (spec/recipe.md); ``requests`` carries it. Whatever
comes from a worker may come from a recipe that has taken it over, so its reader names a
limit and the kinds it expects. What a task asks and answers is read as from an enemy:
lengths, counts, names, order and states are checked against the task.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final, Literal, Protocol

from sealift.channel.device.device import DeviceMemory, DeviceTensor
from sealift.codec import encode_named, from_plain, parse_named
from sealift.errors import MalformedError, PeerError, require_kind
from sealift.ids import Buffer
from sealift.outsource.terms import Backward, Forward
from sealift.release.agreement.training import Parameter
from sealift.train.loop.buckets import Bucket, Trained, cut_buckets
from sealift.train.loop.faults import Fault, believable
from sealift.train.loop.held import PAGE_BYTES, Content, Held, part_of, read_of
from sealift.train.loop.states import MAX_TREE_BYTES, TrainingState, check_state
from sealift.train.loop.statistics import MAX_SUMS_BYTES, check_sums
from sealift.train.loop.tasks import (
    LOSS,
    Rehearsal,
    SliceTask,
    TaskDone,
    TaskInputs,
    TaskParent,
)
from sealift.train.worker.products import BeginStep, ProductAnswers, Settle
from sealift.travel.settings import TrainingSettings

MAX_REQUEST_BYTES: Final = 1 << 20
MAX_ORDER_BYTES: Final = 32 << 20
MAX_DEPTH: Final = 16


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
        device: Where to compute.
        bundle: Bytes of the bundle's blob.
        states: Of each model; None for one that begins. Its tensors lie in a file of
            their own, its tree among the others, end to end.
        starts: Where the tensors begin in their files, of each model that has a state.
        statistics: Bytes behind the trees.
        gradients: Bytes of the device's memory that gradients are to lie in, which the
            parent adds up there; 0 for the area.
    """

    task: SliceTask
    entry: str
    device: str
    bundle: int
    states: tuple[StateSize | None, ...]
    starts: tuple[int, ...]
    statistics: int
    gradients: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyOrder:
    """Be made ready for a task that is not known yet.

    Attributes:
        rehearsal: Steps on synthetic rows, to make first; None to load no recipe.
        entry: Path of the recipe in the bundle.
        device: Where to compute.
        bundle: Bytes of the bundle's blob.
        gradients: Bytes of the device's memory for them that comes along; 0 for none.
    """

    rehearsal: SliceTask | None
    entry: str
    device: str
    bundle: int
    gradients: int = 0


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """The answer to an order to stand by."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A worker that stood by has what its task needs, in the task's own area."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A worker that trains has copied the states that it goes on from."""


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
class TaskMetrics:
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
class AddUp:
    """Asks for the sum of a bucket over all slices; the gradients are the buffer.

    Attributes:
        bucket: Its number.
    """

    bucket: int


@dataclass(frozen=True, slots=True)
class AssignmentDone:
    """The answer to an assignment: in the area lie tensors at the end (``places_of``).

    At its beginning are the trees of these states, and the sums, end to end.

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
        device: Where to compute.
        bundle: Bytes of the bundle's blob.
        model: Bytes of the model, safetensors.
        form: Of the model, in its plain form.
        room: Bytes of the memory that questions come in.
        threads: Of torch.
        parameters: Of the recipe's ``build``.
    """

    entry: str
    device: str
    bundle: int
    model: int
    form: dict[str, Any]
    room: int
    threads: int
    parameters: dict[str, Parameter] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeStep:
    """One thing to do with the model.

    Attributes:
        work: ``predict`` the rows in the room, ``describe`` what that gives, ``begin`` to generate from them, make
            the ``next`` step of a generation, or ``drop`` it; ``prove`` that the device
            still computes.
        stream: Number of the generation.
        rows: Rows in the room.
    """

    work: Literal["predict", "describe", "begin", "next", "drop", "prove"]
    stream: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class ServeAnswer:
    """It is done; the rows lie in the area, none if a generation has ended.

    Attributes:
        rows: In the area.
        fields: What was described: element type and sizes, by name.
    """

    rows: int
    fields: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOrder:
    """A recipe to try on synthetic rows: ``sealift try``.

    Attributes:
        entry: Path of the recipe in the bundle.
        bundle: Bytes of the bundle's blob.
        schema: Of the rows, in its plain form.
        inputs: Schema of what the model is asked when it is served; empty for nothing.
        outputs: Schema of its answers.
        export: Whether it is written down as a graph first, which is then what is tried.
    """

    entry: str
    bundle: int
    schema: dict[str, Any]
    settings: TrainingSettings
    rows: int
    steps: int
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    export: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFailed:
    """What a recipe raised on synthetic rows, in full: they are nobody's.

    Attributes:
        type: Name of the exception.
        doing: What was tried, in words; empty for the steps themselves.
        text: The traceback, or its end.
        file: That could not be opened; empty if it was something else.
    """

    type: str
    doing: str
    text: str
    file: str


@dataclass(frozen=True, slots=True)
class Exported:
    """The graph lies in the area, and behind it its weights.

    Attributes:
        graph: Bytes of it.
        weights: Bytes of them.
        tried: How the graph did on synthetic rows.
    """

    graph: int
    weights: int
    tried: Rehearsal


@dataclass(frozen=True, slots=True)
class NotExported:
    """The recipe cannot be a graph.

    Attributes:
        why: In which line, and for what.
    """

    why: str


BUFFERED: Final = (Handed, AddUp, Forward, Backward)
"""Requests that a buffer belongs to."""


def size_of(state: TrainingState) -> StateSize:
    """How long a state is."""
    return StateSize(state.step, len(state.tensors), len(state.tree))


def begun_states(order: Assignment) -> list[StateSize]:
    """Sizes of the states that come with an assignment."""
    return [size for size in order.states if size is not None]


def stretches_of(order: Assignment) -> list[tuple[int, int]]:
    """Start and length of what is mapped of each file beside an assignment.

    Trees and sums; the tensors of each state; the rows of each part.
    """
    states, rows = begun_states(order), order.task.parts
    plain = sum(size.tree for size in states) + order.statistics
    pairs = zip(order.starts, states, strict=True)
    tensors = [(start, size.tensors) for start, size in pairs]
    return [
        (0, max(1, plain)),
        *tensors,
        *((0, part.rows * part.row_bytes) for part in rows),
    ]


def places_of(room: int, lengths: Iterable[int]) -> list[int]:
    """Where a task's states lie in an area of so many bytes, from its end backwards.

    Each begins with a page and ends before the next one does, so that its pages may be
    mapped without another's. Below zero there is no room.
    """
    found, at = [], room
    for length in lengths:
        at -= length
        at -= at % PAGE_BYTES
        found.append(at)
    return found


# A served model hears and says the same few messages again and again; one value has one
# encoding, so bytes that were read once need not be read again. Nothing in these can change.
_FLAT: Final = (ServeStep, ServeAnswer)
_MOST_REPEATED: Final = 64
_REPEATED: Final[dict[bytes, object]] = {}


def to_bytes(message: object) -> bytes:
    """Canonical bytes of a message behind its name."""
    return encode_named(type(message).__name__, message)


def from_bytes(raw: bytes, *kinds: type, max_bytes: int = MAX_REQUEST_BYTES) -> object:
    """Parse a message of one of these kinds.

    Raises:
        MalformedError: if it is none of them.
    """
    known = _REPEATED.get(raw)
    if type(known) in kinds:
        return known
    name, body = parse_named(raw, max_bytes=max_bytes, max_depth=MAX_DEPTH)
    for kind in kinds:
        if kind.__name__ == name:
            found = from_plain(kind, body, "body")
            if kind in _FLAT and len(_REPEATED) < _MOST_REPEATED:
                _REPEATED[raw] = found
            return found
    raise MalformedError("an unexpected kind of message", code="bad-message")


GONE: Final = "worker-gone"


def worker_gone() -> PeerError:
    """The error for a process that is not there any more."""
    return PeerError("the recipe's process ended", code=GONE)


MAX_METRICS: Final = 2048  # places of tallies, each a number


class LeftArea(Protocol):
    """The area of a worker that is gone; ``requests.Area``."""

    @property
    def length(self) -> int:
        """Bytes of buffers."""
        ...

    def copy(self, start: int, length: int) -> bytes:
        """Bytes from a place on, in memory of our own."""
        ...

    def take(self, start: int, length: int) -> Held:
        """The same by reference."""
        ...


class TaskAnswers:
    """What one task may ask, and answer.

    Args:
        task: The task.
        given: The states that it goes on from.
        gradients: Memory of a device that its gradients lie in; None for the area.
    """

    def __init__(
        self, task: SliceTask, given: TaskInputs, gradients: DeviceMemory | None = None
    ) -> None:
        self._gradients = gradients
        self._task = task
        self._given = given
        self._untold = deque(self._expected())
        self._handed: Counter[int] = Counter()
        self._buckets: tuple[Bucket, ...] = ()
        self._added = 0
        self._loaded = False
        self._products = ProductAnswers(task.outsourced)

    def reply(self, message: object, buffer: Content, parent: TaskParent) -> Buffer:
        """Do what was asked on the way, in copies of the parent's own.

        Returns:
            What lies where the request's buffer did.

        Raises:
            MalformedError: if it makes no sense, or was asked too often.
            JobError: code ``state-changed``.
            SealiftError: see ``TaskParent``.
        """
        match message:
            case Handed():
                self._take(message, buffer, parent)
                return b""
            case Trained():
                self._begin_sums(message, parent)
                return b""
            case Loaded():
                if self._loaded or self._task.work != "train":
                    raise _odd("states loaded twice, or for nothing")
                self._loaded = True
                self._given.loaded()
                return b""
        plain = require_kind(buffer, bytes)
        match message:
            case AddUp():
                return self._add_up(message, plain, parent)
            case BeginStep() | Forward() | Backward() | Settle():
                return self._products.reply(message, plain, parent)
            case _:
                self._tell(message, plain, parent)
        return b""

    def _tell(self, message: object, buffer: bytes, parent: TaskParent) -> None:
        message = require_kind(message, TaskMetrics)
        if not self._untold or (message.model, message.place) != self._untold.popleft():
            raise _odd("metrics out of order")
        if buffer or len(message.values) > MAX_METRICS:
            raise _odd("too many metrics")
        if self._task.work == "train" and set(message.values) != {LOSS}:
            raise _odd("metrics other than the loss")
        return parent.measured(message.model, message.place, message.values)

    def length_of(self, message: object) -> int:
        """How long the buffer of a request is, if the request is the task's.

        Raises:
            MalformedError: if it cannot be.
        """
        match message:
            case Handed():
                _demand_lengths(message.size)
                return message.size.tensors + message.size.tree
            case AddUp() if self._buckets and self._gradients is None:
                return self._buckets[self._added % len(self._buckets)].length
            case Forward() | Backward():
                return self._products.length_of(message)
        return 0

    def finish(self, done: AssignmentDone, area: LeftArea) -> TaskDone:
        """The results, once the worker is gone.

        Raises:
            MalformedError: if anything does not fit the task.
        """
        task = self._task
        models = task.models if task.work != "prepare" else ()
        if len(done.states) != len(models) or self._untold:
            raise _odd("another number of models or metrics than the task has")
        if self._added != self._sums_asked:
            raise _odd("fewer sums than the task has steps")
        for place, size in enumerate(done.states):
            if (size is None) is not (task.work == "heldout"):
                raise _odd("a missing or an unexpected state")
            if size is not None and size.step != self._last_step(place):
                raise _odd("another number of steps than the task has")
        sizes = [size for size in done.states if size is not None]
        places = iter(places_of(area.length, [size.tensors for size in sizes]))
        states, at = list[TrainingState | None](), 0
        for size in done.states:
            if size is None:
                states.append(None)
                continue
            _demand_lengths(size)
            tree, at = area.copy(at, size.tree), at + size.tree
            states.append(_checked(size, area.take(next(places), size.tensors), tree))
        sums = self._sums(done.statistics, at, area)
        return TaskDone(states=tuple(states), statistics=sums)

    def believe(self, fault: Fault, files: Mapping[str, bytes], *, gpu: bool) -> Fault:
        """What of a fault can be so."""
        fields = {
            str(field.get("name", ""))
            for part in self._task.parts
            for field in part.schema.get("fields", ())
        }
        models = range(len(self._task.models))
        first = min(map(self._first_step, models), default=0)
        last = max(map(self._last_step, models), default=0)
        steps = range(first, last)
        state = self._given.states[0] if self._given.states else None
        return believable(
            fault,
            files,
            fields=frozenset(fields),
            parameters=frozenset(state.model() if state else ()),
            gpu=gpu,
            steps=steps,
        )

    def _first_step(self, model: int) -> int:
        state = self._given.states[model]
        return 0 if state is None else state.step

    def _last_step(self, model: int) -> int:
        steps = sum(self._task.models[model].windows)
        if self._task.together is not None:
            steps = self._task.together.steps(self._task.settings.batch_rows)
        return self._first_step(model) + steps

    @property
    def _sums_asked(self) -> int:
        """How many sums the task asks for: none, where it has all slices itself."""
        if self._task.together is None or len(self._task.models) > 1:
            return 0
        return (self._last_step(0) - self._first_step(0)) * max(1, len(self._buckets))

    def _expected(self) -> list[tuple[int, int]]:
        """Models and places of the numbers, in the order in which they are told."""
        models = range(len(self._task.models))
        found = [(m, place) for m in models for place in range(self._places(m))]
        if self._task.together is None:
            return found
        ends = [list(accumulate(model.windows)) for model in self._task.models]
        return sorted(found, key=lambda each: (ends[each[0]][each[1]], each[0]))

    def _begin_sums(self, trained: Trained, parent: TaskParent) -> None:
        state = self._given.states[0] if self._given.states else None
        together = self._task.together
        if together is None or state is None or self._buckets:
            raise _odd("unexpected or repeated gradient buckets")
        self._buckets = cut_buckets(
            trained, state.model(), together.bucket_bytes, units=together.units
        )
        parent.begin_sums(trained)

    def _add_up(self, asked: AddUp, buffer: bytes, parent: TaskParent) -> Buffer:
        if not self._buckets or self._added >= self._sums_asked:
            raise _odd("more sums than the task has steps")
        bucket = self._buckets[self._added % len(self._buckets)]
        there = self._gradients
        length = 0 if there else bucket.length
        if (asked.bucket, len(buffer)) != (bucket.number, length):
            raise _odd("another bucket than the next one")
        self._added += 1
        if there is None:
            return parent.add_up(bucket, buffer)
        if bucket.start + bucket.length > there.nbytes:
            raise _odd("a bucket outside of its memory")
        numbers = DeviceTensor(there, bucket.start, bucket.elements, bucket.dtype)
        return parent.add_up(bucket, numbers)

    def _places(self, model: int) -> int:
        """How many numbers there will be of a model."""
        of = self._task.models[model]
        match self._task.work:
            case "train":  # a loss is of rows, and no noise is added to it
                return 0 if self._task.private else len(of.windows)
            case "heldout":
                return len(of.parts)
        return 0

    def _take(self, handed: Handed, content: Content, parent: TaskParent) -> None:
        """Of a state between two steps: twice, where the job stops steps for that."""
        model, every = handed.model, self._task.settings.digest_every
        if not 0 <= model < len(self._task.models) or not every:
            raise _odd("an unexpected state")
        first, last = self._first_step(model), self._last_step(model)
        self._handed[model] += 1
        if self._handed[model] > 2 * ((last - 1) // every - first // every):
            raise _odd("more states than the task asks for")
        size = handed.size
        _demand_lengths(size)
        if len(content) != size.tensors + size.tree:
            raise _odd("a state of another length than announced")
        tree = read_of(content, size.tensors, size.tree)
        tensors = part_of(content, 0, size.tensors)
        parent.hand_over(model, _checked(size, tensors, tree))

    def _sums(
        self, lengths: Sequence[int], at: int, area: LeftArea
    ) -> tuple[bytes, ...]:
        parts = len(self._task.parts) if self._task.work == "prepare" else 0
        if len(lengths) != parts:
            raise _odd("another number of sums than the task has")
        found = []
        for length in lengths:
            if length > MAX_SUMS_BYTES:  # before it is copied (rule O8)
                raise _odd(f"sums of {length:,} bytes")
            blob = area.copy(at, length)
            check_sums(blob)
            found.append(blob)
            at += length
        return tuple(found)


def _demand_lengths(size: StateSize) -> None:
    """Raises ``MalformedError`` for a size that is none."""
    if size.tensors < 0 or size.tree < 0 or size.step < 0:
        raise _odd("a negative length")
    if size.tree > MAX_TREE_BYTES:  # before it is copied (rule O8)
        raise _odd(f"a tree of {size.tree:,} bytes")


def _checked(size: StateSize, tensors: Content, tree: bytes) -> TrainingState:
    state = TrainingState(size.step, tensors, tree)
    check_state(state)
    return state


def _odd(why: str) -> MalformedError:
    return MalformedError(
        "the message is not an answer to the task", why=why, code="bad-message"
    )
