"""One task's process, seen from the parent, which believes nothing that it says.

Its answers are read as from an enemy, since a recipe may be the one who speaks: lengths,
counts, names and states are checked, bytes are copied before they are read, and whoever
overstays is killed. When ``do`` returns, with a result or an error, the process is gone,
its memory with it, and what both mapped is overwritten.
"""

from __future__ import annotations

import socket
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Final

from sealift.data.schedule.memory import SharedBuffer, free_memory_bytes, overwritten
from sealift.errors import MalformedError, PeerError
from sealift.train.loop.faults import Fault, believable, explain
from sealift.train.loop.states import TrainingState, check_state
from sealift.train.loop.statistics import check_sums
from sealift.train.loop.tasks import LOSS, Given, SliceTask, TaskDone, TaskParent
from sealift.train.worker.messages import (
    Assignment,
    Done,
    Handed,
    Metrics,
    StateSize,
    size_of,
)
from sealift.train.worker.process import (
    FAREWELL_S,
    TaskEquipment,
    TextTap,
    WorkerProcess,
    garbled,
)
from sealift.train.worker.requests import Area, Request

MAX_METRICS: Final = 64


class TaskAnswers:
    """What one task may ask, and answer.

    Args:
        task: The task.
        given: The states that it goes on from.
        area: Where its results lie in the end.
    """

    def __init__(self, task: SliceTask, given: Given, area: Area) -> None:
        self._task = task
        self._given = given
        self._area = area
        self._untold = deque(
            (model, place)
            for model in range(len(task.models))
            for place in range(self._places(model))
        )
        self._handed: Counter[int] = Counter()

    def reply(self, request: Request, parent: TaskParent) -> None:
        """Do what was asked on the way.

        Raises:
            MalformedError: if it makes no sense, or was asked too often.
            JobError: code ``state-changed``.
        """
        message = request.message
        if isinstance(message, Handed):
            return self._take(message, request.buffer, parent)
        assert isinstance(message, Metrics)
        if not self._untold or (message.model, message.place) != self._untold.popleft():
            raise _odd("other numbers than the next ones")
        if request.buffer or len(message.values) > MAX_METRICS:
            raise _odd("too many metrics")
        if self._task.work == "train" and set(message.values) != {LOSS}:
            raise _odd("something else than a loss")
        return parent.measured(message.model, message.place, message.values)

    def finish(self, done: Done) -> TaskDone:
        """The results, once the worker is gone.

        Raises:
            MalformedError: if anything does not fit the task.
        """
        task, at = self._task, 0
        models = task.models if task.work != "prepare" else ()
        if len(done.states) != len(models) or self._untold:
            raise _odd("another number of models or metrics")
        states: list[TrainingState | None] = []
        for place, size in enumerate(done.states):
            if (size is None) is not (task.work == "heldout"):
                raise _odd("a state too much or too few")
            if size is None:
                states.append(None)
                continue
            if size.step != self._last_step(place):
                raise _odd("another number of steps")
            content = self._area.copy(at, _length(size))
            states.append(_state(size, content))
            at += len(content)
        return TaskDone(states=tuple(states), statistics=self._sums(done, at))

    def believe(self, fault: Fault, files: Mapping[str, bytes]) -> Fault:
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
        return believable(fault, files, fields=frozenset(fields), steps=steps)

    def _first_step(self, model: int) -> int:
        state = self._given.states[model]
        return 0 if state is None else state.step

    def _last_step(self, model: int) -> int:
        return self._first_step(model) + sum(self._task.models[model].windows)

    def _places(self, model: int) -> int:
        """How many numbers there will be of a model."""
        of = self._task.models[model]
        match self._task.work:
            case "train":
                return len(of.windows)
            case "heldout":
                return len(of.parts)
        return 0

    def _take(self, handed: Handed, content: bytes, parent: TaskParent) -> None:
        """Of a state between two steps: twice, where the job stops steps for that."""
        model, every = handed.model, self._task.settings.digest_every
        if not 0 <= model < len(self._task.models) or not every:
            raise _odd("a state of no model, or for nothing")
        first, last = self._first_step(model), self._last_step(model)
        self._handed[model] += 1
        if self._handed[model] > 2 * ((last - 1) // every - first // every):
            raise _odd("a state more often than steps stop")
        if len(content) != _length(handed.size):
            raise _odd("a state of another length")
        parent.hand_over(model, _state(handed.size, content))

    def _sums(self, done: Done, at: int) -> tuple[bytes, ...]:
        parts = len(self._task.parts) if self._task.work == "prepare" else 0
        if len(done.statistics) != parts:
            raise _odd("another number of sums")
        found = []
        for length in done.statistics:
            blob = self._area.copy(at, length)
            check_sums(blob)
            found.append(blob)
            at += length
        return tuple(found)


def _length(size: StateSize) -> int:
    if size.tensors < 0 or size.tree < 0 or size.step < 0:
        raise _odd("a negative length")
    return size.tensors + size.tree


def _state(size: StateSize, content: bytes) -> TrainingState:
    state = TrainingState(size.step, content[: size.tensors], content[size.tensors :])
    check_state(state)
    return state


def _odd(why: str) -> MalformedError:
    return MalformedError("not an answer to the task", why=why, code="bad-message")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkshopLimits:
    """What one task may take.

    Attributes:
        work_s: Seconds.
        memory_bytes: Private memory; 0 for what is free when it starts.
        area_bytes: Room for the states handed over; 0 for a quarter of that.
    """

    work_s: float = 3600.0
    memory_bytes: int = 0
    area_bytes: int = 0


class TaskProcess:
    """One worker, seen from its parent.

    Args:
        control: To the zygote.
        equipment: What every task gets.
        limits: What this one may take.
        stack: Ends what is opened here.
    """

    def __init__(
        self,
        control: socket.socket,
        equipment: TaskEquipment,
        limits: WorkshopLimits,
        stack: ExitStack,
    ) -> None:
        free = free_memory_bytes()
        self._equipment = equipment
        self._memory_bytes = limits.memory_bytes or free
        self._area = stack.enter_context(closing(Area(limits.area_bytes or free // 4)))
        self._text = stack.enter_context(closing(TextTap(equipment.text)))
        self._process = WorkerProcess(control, equipment, self._area)
        stack.callback(self._process.end, 0.0)
        self._process.allow(limits.work_s)

    def do(self, task: SliceTask, given: Given, parent: TaskParent) -> TaskDone:
        """Start it, give it its task, take its answer; it is gone afterwards."""
        answers = TaskAnswers(task, given, self._area)
        process, farewell_s = self._process, 0.0
        with overwritten(_states_of(given)) as states:
            files = (states, *given.rows)
            try:
                process.start(
                    self._memory_bytes, self._text, [each.descriptor for each in files]
                )
                process.tell(self._assignment(task, given))
                answer = self._serve(answers, parent)
                farewell_s = FAREWELL_S
            except MalformedError:
                raise garbled() from None
            except PeerError as error:
                raise process.died(error, "visit") from None
            finally:
                process.end(farewell_s)
        return self._read(answers, answer)

    def _serve(self, answers: TaskAnswers, parent: TaskParent) -> Done | Fault:
        """Reply to whatever it asks, until it says how the task went."""
        while True:
            request = self._process.hear(Handed, Metrics, Done, Fault)
            if isinstance(request.message, Done | Fault):
                return request.message
            answers.reply(request, parent)
            self._process.tell()

    def cut(self) -> None:
        """End it, from another thread."""
        self._process.cut()

    def _assignment(self, task: SliceTask, given: Given) -> Assignment:
        return Assignment(
            task=task,
            entry=self._equipment.entry,
            bundle=self._equipment.bundle.length,
            states=tuple(
                None if each is None else size_of(each) for each in given.states
            ),
            statistics=len(given.statistics),
        )

    def _read(self, answers: TaskAnswers, answer: Done | Fault) -> TaskDone:
        try:
            if isinstance(answer, Done):
                return answers.finish(answer)
            raise explain(answers.believe(answer, self._equipment.files))
        except MalformedError as error:
            if error.code in ("bad-row", "bundle-hides-module"):
                raise
            raise garbled() from None


def _states_of(given: Given) -> SharedBuffer:
    """States and sums end to end; never empty, as nothing can be mapped of nothing."""
    parts = [
        part for each in given.states if each for part in (each.tensors, each.tree)
    ]
    parts.append(given.statistics)
    shared, at = SharedBuffer(max(1, sum(map(len, parts)))), 0
    for part in parts:
        shared.view[at : at + len(part)] = part
        at += len(part)
    return shared
