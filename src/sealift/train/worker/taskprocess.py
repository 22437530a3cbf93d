"""One task's process, seen from the parent, which believes nothing that it says.

Its answers are read as from an enemy, since a recipe may be the one who speaks: lengths,
counts, names and states are checked, bytes are copied before they are read, and whoever
overstays is killed. When ``do`` returns, with a result or an error, the process is gone,
its memory with it, and what both mapped is overwritten.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Final

from sealift.data.schedule.memory import SharedBuffer, free_memory_bytes, overwritten
from sealift.errors import MalformedError, PeerError
from sealift.train.loop.faults import Fault, believable, explain
from sealift.train.loop.states import TrainingState, check_state
from sealift.train.loop.statistics import check_sums
from sealift.train.loop.tasks import Given, HandOver, ModelDone, SliceTask, TaskDone
from sealift.train.worker.memory import Area
from sealift.train.worker.messages import (
    MAX_ANSWER_BYTES,
    Assignment,
    Done,
    DoneModel,
    GoOn,
    Handed,
    Importing,
    StateSize,
    from_bytes,
    size_of,
)
from sealift.train.worker.process import (
    FAREWELL_S,
    TaskEquipment,
    TextTap,
    WorkerProcess,
    garbled,
)

MAX_METRICS: Final = 64


class Answers:
    """What can be an answer to one task.

    Args:
        task: The task.
        given: The states that it goes on from.
        area: Where states are handed over.
    """

    most = MAX_ANSWER_BYTES

    def __init__(self, task: SliceTask, given: Given, area: Area) -> None:
        self._task = task
        self._given = given
        self._area = area

    def read(self, raw: bytes) -> Handed | Importing | Done | Fault:
        """Parse one message.

        Raises:
            MalformedError: if it is none of them.
        """
        found = from_bytes(raw, Handed, Importing, Done, Fault)
        assert isinstance(found, Handed | Importing | Done | Fault)
        return found

    def take(self, handed: Handed) -> TrainingState:
        """A copy of a state that was handed over between two steps.

        Raises:
            MalformedError: if it is none.
        """
        if not 0 <= handed.model < len(self._task.models):
            raise _odd("no such model")
        return self._state(0, handed.size)[0]

    def finish(self, done: Done) -> TaskDone:
        """The results, once the worker is gone.

        Raises:
            MalformedError: if anything does not fit the task.
        """
        task, at = self._task, 0
        models = task.models if task.work != "prepare" else ()
        if len(done.models) != len(models):
            raise _odd("another number of models")
        found = []
        for place, each in enumerate(done.models):
            result, at = self._finish_model(place, each, at)
            found.append(result)
        return TaskDone(models=tuple(found), statistics=self._sums(done, at))

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

    def _finish_model(
        self, place: int, done: DoneModel, at: int
    ) -> tuple[ModelDone, int]:
        model, work = self._task.models[place], self._task.work
        windows = len(model.windows) if work == "train" else 0
        parts = len(model.parts) if work == "heldout" else 0
        if len(done.sums) != windows or len(done.metrics) != parts:
            raise _odd("another number of results")
        if (done.size is None) is not (work == "heldout"):
            raise _odd("a state too much or too few")
        if not all(map(math.isfinite, done.sums)):
            raise _odd("a loss that is no number")
        if any(len(each) > MAX_METRICS for each in done.metrics):
            raise _odd("too many metrics")
        state = None
        if done.size is not None:
            if done.size.step != self._last_step(place):
                raise _odd("another number of steps")
            state, at = self._state(at, done.size)
        return ModelDone(state=state, sums=done.sums, metrics=done.metrics), at

    def _state(self, at: int, size: StateSize) -> tuple[TrainingState, int]:
        if size.tensors < 0 or size.tree < 0 or size.step < 0:
            raise _odd("a negative length")
        content = self._area.copy(at, size.tensors + size.tree)
        state = TrainingState(
            size.step, content[: size.tensors], content[size.tensors :]
        )
        check_state(state)
        return state, at + len(content)

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
        self._process = WorkerProcess(control, equipment)
        self._process.allow(limits.work_s)
        self._equipment = equipment
        self._memory_bytes = limits.memory_bytes or free
        self._area = stack.enter_context(closing(Area(limits.area_bytes or free // 4)))
        self._text = stack.enter_context(closing(TextTap(equipment.text)))

    def do(self, task: SliceTask, given: Given, hand_over: HandOver) -> TaskDone:
        """Start it, give it its task, take its answer; it is gone afterwards."""
        answers = Answers(task, given, self._area)
        process, farewell_s = self._process, 0.0
        with overwritten(_states_of(given)) as states:
            descriptors = [
                self._text.descriptor,
                self._equipment.bundle.descriptor,
                states.descriptor,
                self._area.descriptor,
                *(each.descriptor for each in given.rows),
            ]
            try:
                process.start(self._memory_bytes, descriptors)
                order: object = self._assignment(task, given)
                while isinstance(
                    answer := process.ask(order, answers.read, answers.most), Handed
                ):
                    hand_over(answer.model, answers.take(answer))
                    order = GoOn()
                farewell_s = FAREWELL_S
            except MalformedError:
                raise garbled() from None
            except PeerError as error:
                raise process.died(error, "visit") from None
            finally:
                process.end(farewell_s)
        assert isinstance(answer, Done | Fault)
        return self._read(answers, answer)

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
            area=self._area.length,
        )

    def _read(self, answers: Answers, answer: Done | Fault) -> TaskDone:
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
