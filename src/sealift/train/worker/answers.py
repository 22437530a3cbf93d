"""Read what a worker answers, as from an enemy: a recipe may be the one who speaks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from sealift.errors import MalformedError
from sealift.train.loop.faults import Fault, believable
from sealift.train.loop.states import TrainingState, check_state
from sealift.train.loop.statistics import check_sums
from sealift.train.loop.tasks import Given, ModelDone, SliceTask, TaskDone
from sealift.train.worker.area import Area
from sealift.train.worker.messages import (
    MAX_ANSWER_BYTES,
    Done,
    DoneModel,
    Handed,
    Importing,
    StateSize,
    from_bytes,
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
