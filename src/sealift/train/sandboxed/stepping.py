"""Steps whose gradient is the mean over the rows of all slices, in the process that trains.

A slice's gradient is the mean over its own rows, weighed by its part of the step's rows; a
slice whose rows are used up takes part with zeros. A step's random stream is its slice's
own while the loss is computed, and everybody's when the optimizer steps. With one slice
here the parent adds up each bucket as soon as it is whole, in a thread beside the backward
pass; with all of them, they are added up here, in their order, with the same bits.

A recipe's products, asked for step by step, in the process that trains.

Linear layers and convolutions are converted; what their products come to is believed when
the step has been settled, and neither weights nor numbers count before. A step that is made
again begins from what the model held when it began: its buffers are put back, and its
random stream is entered again. What a recipe keeps elsewhere is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate
from types import TracebackType
from typing import Self, TypeVar

import torch
from torch import Tensor, nn

from sealift.errors import require_value
from sealift.outsource.convert import ModelState, Route, convert
from sealift.train.loop.buckets import Array, Bucket
from sealift.train.loop.faults import gradient_not_finite
from sealift.train.loop.states import TrainingState
from sealift.train.loop.tasks import (
    LOSS,
    SliceTask,
    StepProducts,
    TaskInputs,
    TaskParent,
)
from sealift.train.sandboxed.gradients import Gradients, Room
from sealift.train.sandboxed.imports import Guard
from sealift.train.sandboxed.torchstate import as_tensor
from sealift.train.sandboxed.training import GroupRows, Training, enter_stream, scope_of

T = TypeVar("T")


class OutsourcedSteps:
    """The steps of one model.

    Args:
        products: Are asked for.
        guard: Runs the recipe's code.
        model: Converted in place. The first and the last of the converted modules, in
            the model's own order, are its edges.
    """

    def __init__(self, products: StepProducts, guard: Guard, model: nn.Module) -> None:
        self._products, self._model, self._guard = products, model, guard
        self._route = Route()
        names = guard(convert, model, self._route)
        self._route.edges = frozenset((*names[:1], *names[-1:]))

    def make(self, work: Callable[[], T], *, trains: bool) -> T:
        """Do a step's work, again if its products turn out to be wrong.

        Raises:
            SealiftError: if the job ends by that, or the work fails.
        """
        state: ModelState = self._guard(ModelState, self._model)
        while True:
            self._products.begin()
            self._route.begin()
            with self._route.to(self._products, keeps=trains):
                found = work()
            if self._products.settle():
                return found
            self._guard(state.restore)


class SliceBatches:
    """What one slice has of the steps.

    Args:
        training: Draws the batches.
        task: The steps.
        place: Of the slice's model in the task.
        rows: Its rows; None without any.
    """

    def __init__(
        self, training: Training, task: SliceTask, place: int, rows: GroupRows | None
    ) -> None:
        model = task.models[place]
        slices = [task.parts[part].slice for part in model.parts]
        self.number = task.slice + place
        self.scope = scope_of(slices, self.number)
        self._rows = rows
        self._batches = training.batches(len(rows), slices) if rows else []
        self._ends = [end - 1 for end in accumulate(model.windows)]
        self._total = 0.0

    def batch(self, step: int) -> dict[str, Tensor] | None:
        """The rows of a step; None once they are used up."""
        if self._rows is None or step >= len(self._batches):
            return None
        return self._rows.batch(self._batches[step])

    def note(self, step: int, loss: float) -> None:
        """Take the mean loss of a step."""
        self._total += loss * len(self._batches[step])

    def window(self, step: int) -> tuple[int, float] | None:
        """Number and sum of the window that ends with a step, if one does."""
        if step not in self._ends:
            return None
        total, self._total = self._total, 0.0
        return self._ends.index(step), total


class StepLoop:
    """One task of steps that all slices make together.

    Args:
        training: Of the first of the slices that are here.
        task: With one model a slice.
        given: Their states.
        rows: Of each slice that is here; None for one that has none left.
        parent: Told what there is to tell.
        room: Where gradients lie.
        shared: Memory of the device where they lie instead, which the parent maps.

    Raises:
        JobError: ``bad-recipe``, if the recipe's gradients cannot be added up.
    """

    def __init__(
        self,
        training: Training,
        task: SliceTask,
        given: TaskInputs,
        rows: Sequence[GroupRows | None],
        *,
        parent: TaskParent,
        room: Room,
        shared: Tensor | None = None,
    ) -> None:
        together = require_value(task.together)
        state = require_value(given.states[0], "a model is built before it is trained")
        self._training, self._task, self._parent = training, task, parent
        self._together, self._settings = together, task.settings
        self._gradients = Gradients(
            training, state, together.bucket_bytes, room, shared=shared
        )
        self._own = [
            SliceBatches(training, task, place, each) for place, each in enumerate(rows)
        ]
        self._sums: AskedSums | LocalSums
        if len(self._own) == 1:
            self._sums = AskedSums(self._gradients, parent)
        else:
            self._sums = LocalSums(self._gradients)
        self._kept = SliceBuffers(self._training, self._gradients, given.states)
        parent.begin_sums(self._gradients.trained)

    def run(self) -> tuple[TrainingState, ...]:
        """Make all steps; the states of the slices that are here."""
        self._training.guard(self._training.model.train)
        epoch = max(
            (self._task.epoch, *(each.slice.epoch for each in self._task.parts))
        )
        self._training.begin_epoch(epoch)
        steps = self._together.steps(self._settings.batch_rows)
        for step in range(steps):
            for place in range(len(self._own)):
                self._kept.enter(place)
                self._work_on(step, place)
                self._kept.leave(place)
            self._sums.finish(self._training.step)
            enter_stream(self._settings.seed, "update", self._training.step)
            self._training.make_step(epoch)
            self._tell(step, steps)
        places = range(len(self._own))
        return tuple(self._state(p, ends=True, used_up=p == places[-1]) for p in places)

    def close(self) -> None:
        """Ask for nothing any more."""
        self._sums.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _work_on(self, step: int, place: int) -> None:
        own, training = self._own[place], self._training
        batch = own.batch(step)
        if batch is None:
            self._gradients.begin(self._sums.whole)
        else:
            batch = training.placement.batch(batch)
            loss, value = training.loss(batch, own.scope)
            self._gradients.begin(self._sums.whole)
            training.guard(loss.backward)
            own.note(step, value)
        self._gradients.end()
        share = self._together.share(own.number, step, self._settings.batch_rows)
        self._sums.add(share)

    def _tell(self, step: int, steps: int) -> None:
        for place, own in enumerate(self._own):
            found = own.window(step)
            if found is not None:
                self._parent.measured(place, found[0], {LOSS: found[1]})
        every = self._settings.digest_every
        if every and self._training.step % every == 0 and step + 1 < steps:
            for place in range(len(self._own)):
                for _ in range(2):
                    self._parent.hand_over(place, self._state(place))

    def _state(
        self, place: int, *, ends: bool = False, used_up: bool = False
    ) -> TrainingState:
        self._kept.enter(place)
        return self._training.state(ends=ends, used_up=used_up)


class AskedSums:
    """The parent adds up, while the backward pass goes on.

    Args:
        gradients: Of this slice.
        parent: Is asked.
    """

    def __init__(self, gradients: Gradients, parent: TaskParent) -> None:
        self._gradients, self._parent = gradients, parent
        self._thread = ThreadPoolExecutor(1)
        self._asked: list[Future[None]] = []
        self._goes_on = True  # no ask has failed

    def whole(self, bucket: Bucket) -> None:
        """Ask for the sum of a bucket."""
        there = self._gradients.mark()
        self._asked.append(self._thread.submit(self._ask, bucket, there))

    def add(self, share: float) -> None:
        """The parent weighs by itself."""

    def finish(self, step: int) -> None:
        """Wait for all sums, and with the last for every slice's word."""
        for each in self._asked:
            each.result()
        self._asked.clear()

    def close(self) -> None:
        """What was not asked yet is not asked any more."""
        self._thread.shutdown(cancel_futures=True)

    def _ask(self, bucket: Bucket, there: Callable[[], None]) -> None:
        if self._goes_on:  # what comes behind a bucket that failed is nobody's next one
            self._goes_on = False
            there()
            own = self._gradients.bytes_of(bucket)
            self._gradients.put(bucket, self._parent.add_up(bucket, own))
            self._goes_on = True


class LocalSums:
    """All slices are here, one after the other.

    Args:
        gradients: Of the slice that was worked on last.
    """

    def __init__(self, gradients: Gradients) -> None:
        self._gradients = gradients
        self._totals: dict[int, Array] = {}

    def whole(self, bucket: Bucket) -> None:
        """Its turn comes when the slice's backward pass is over."""

    def add(self, share: float) -> None:
        """Add the last slice's gradients, with its part of the rows."""
        for bucket in self._gradients.buckets:
            own = self._gradients.array(bucket)
            weighed = own * own.dtype.type(share)
            if bucket.number in self._totals:
                self._totals[bucket.number] += weighed
            else:
                self._totals[bucket.number] = weighed

    def finish(self, step: int) -> None:
        """Put the sums where the gradients were.

        Raises:
            JobError: ``not-finite``.
        """
        for bucket in self._gradients.buckets:
            total = self._totals.pop(bucket.number)
            odd = bucket.first_odd(total)
            if odd is not None:
                raise gradient_not_finite(odd, step)
            self._gradients.put(bucket, total.data)

    def close(self) -> None:
        """Nothing is under way."""


class SliceBuffers:
    """What no gradient belongs to, of each slice that is here; one of them is in the model.

    Args:
        training: The model.
        gradients: What is not kept here.
        states: What each slice begins with.
    """

    def __init__(
        self,
        training: Training,
        gradients: Gradients,
        states: Sequence[TrainingState | None],
    ) -> None:
        self._training = training
        trained = gradients.trained
        self._summed = {*trained.names, *trained.tied}
        self._several = len(states) > 1
        self._place = 0
        self._kept: list[Mapping[str, Tensor]] = []
        if self._several:
            live = self._live()
            self._kept = [live | self._of(each) for each in states if each is not None]

    def enter(self, place: int) -> None:
        """Put a slice's own into the model."""
        if self._several and place != self._place:
            with torch.no_grad():
                for name, each in self._live(copied=False).items():
                    each.copy_(self._kept[place][name])
            self._place = place

    def leave(self, place: int) -> None:
        """Keep what is in the model."""
        if self._several:
            self._kept[place] = self._live()

    def _live(self, *, copied: bool = True) -> dict[str, Tensor]:
        """As they are now: a module may put other tensors in their place."""
        model, guard = self._training.model, self._training.guard
        found: dict[str, Tensor] = dict(guard(lambda: list(model.named_buffers())))
        found |= guard(model.state_dict)
        own = {n: each.detach() for n, each in found.items() if n not in self._summed}
        return {n: each.clone() for n, each in own.items()} if copied else own

    def _of(self, state: TrainingState) -> dict[str, Tensor]:
        own = {n: each for n, each in state.model().items() if n not in self._summed}
        return {name: as_tensor(each) for name, each in own.items()}
