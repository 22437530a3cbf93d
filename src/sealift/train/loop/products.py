"""Outsourced products as a job's parent process has them: which steps, held to which trace.

A task's steps follow from what it is asked to do: the parent counts them itself, gives each
its trace and its number, and ends the job at any other product (rule N2). A recipe that
fails within a step does not show where: the rest of the step's exchanges is of zeros, and
is judged like any other (rules C2 and M3). No torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np

from sealift.codec import encode
from sealift.data.schedule.memory import free_memory_bytes
from sealift.data.schedule.visits import VisitBatch
from sealift.errors import (
    IntegrityError,
    JobError,
    MalformedError,
    SealiftError,
    UnavailableError,
    require_value,
)
from sealift.numeric.kernels import Kernels
from sealift.numeric.residues import F32
from sealift.outsource.multiplier import Multiplier, Products
from sealift.outsource.plain import PlainProducts
from sealift.outsource.terms import Backward, Forward, Layer
from sealift.outsource.trace import (
    Phase,
    Recorder,
    StepKind,
    StepTrace,
    Trace,
    Traces,
    other_operations,
    tabulate,
)
from sealift.release.agreement import Agreement
from sealift.train.loop.tasks import SliceTask, StepForm, TaskInputs, Workplace
from sealift.train.loop.told import TaskObserver
from sealift.travel.settings import TrainingSettings

WRONG: Final = ("wrong-product", "bad-share")


class Outsourcing:
    """The products of one job.

    Args:
        reach: Where they are made, once the job's traces are known.
        kernels: Compute.
        seed: Of the job.
        redo: How many steps are made again that a server answered wrongly.
        told: Gets what a server answered wrongly, while the run goes on.

    Attributes:
        traces: Of the job's steps; empty before the rehearsal.
    """

    def __init__(
        self,
        reach: Callable[[Traces], Products],
        kernels: Kernels,
        seed: int,
        *,
        redo: int = 0,
        told: Callable[[SealiftError], None] = lambda error: None,
    ) -> None:
        self._reach, self._kernels, self._seed = reach, kernels, seed
        self._redo, self._told = redo, told
        self.traces = Traces(())

    def rehearse(
        self,
        forms: tuple[StepForm, ...],
        workplace: Workplace,
        settings: TrainingSettings,
    ) -> None:
        """Make steps on synthetic rows, to whose traces the job is held from then on.

        No server hears of them; their products are made here.

        Raises:
            JobError: ``other-operations``, ``products-exceed-limits``.
            UnavailableError: ``no-memory``, if a step's operands do not fit in here.
        """
        plain = PlainProducts(workplace.demand_time)
        steps = RehearsedSteps(
            Multiplier(plain, self._kernels, self._seed),
            forms,
            most_bytes=free_memory_bytes() // 2,
        )
        task = SliceTask("rehearse", settings, outsourced=True, forms=forms)
        workplace.do(task, TaskInputs(), TaskObserver(products=steps))
        self._learn(steps.traces(), free_memory_bytes())

    def _learn(self, traces: Traces, free_bytes: int) -> None:
        needed = traces.operand_bytes()
        if needed > free_bytes:
            raise UnavailableError(
                f"there is not enough memory for the {needed} bytes of a step's "
                "operands",
                why=f"{free_bytes} bytes are free",
                fix="Reduce batch_rows in the job",
                code="no-memory",
            )
        self.traces = traces
        products = self._reach(traces)
        self._multiplier = Multiplier(products, self._kernels, self._seed)

    @contextmanager
    def steps(self, task: SliceTask, given: TaskInputs) -> Iterator[TaskSteps]:
        """The steps of a task; one that its recipe leaves is made whole, and judged.

        So servers see the same of it whether the recipe fails, leaves the trace or ends.

        Raises:
            See ``TaskSteps.settle``: what a server did comes before what the recipe made
                of it.
            JobError: ``other-operations``, if there are fewer steps than known.
        """
        found = TaskSteps(self, self._multiplier, _steps_of(task, given))
        try:
            yield found
            found.end()
        except SealiftError:
            found.make_whole()
            raise

    def tell(self, error: SealiftError) -> None:
        """Of an answer that was wrong, whatever becomes of its step."""
        self._told(error)

    def forgives(self) -> bool:
        """Whether a step with a wrong answer is made again."""
        if not self._redo:
            return False
        self._redo -= 1
        return True


@dataclass(frozen=True, slots=True)
class StepPlace:
    """One step of a task, and its number."""

    kind: StepKind
    number: int


class RehearsedSteps:
    """A rehearsal's steps, in the order of their forms.

    Args:
        multiplier: Makes the products, in this process.
        forms: Of the steps.
        most_bytes: Memory that one of them may take here.
    """

    def __init__(
        self, multiplier: Multiplier, forms: Sequence[StepForm], *, most_bytes: int
    ) -> None:
        self._multiplier, self._most_bytes = multiplier, most_bytes
        self._forms = iter(forms)
        self._found: dict[StepKind, Trace] = {}
        self._recorder: Recorder | None = None

    def begin(self) -> None:
        """The next form's step."""
        form = next(self._forms, None)
        if form is None or self._recorder is not None:
            raise other_operations("a step was requested that was not planned")
        self._kind, self._recorder = form.kind, Recorder(self._most_bytes)
        self._multiplier.begin(form.kind, 0, self._recorder)

    def forward(self, exchange: Forward, x: F32, w: F32) -> F32:
        """See ``Multiplier.forward``."""
        self._demand_begun()
        return self._multiplier.forward(exchange, x, w)

    def backward(self, exchange: Backward, dy: F32) -> list[F32]:
        """See ``Multiplier.backward``."""
        self._demand_begun()
        return self._multiplier.backward(exchange, dy)

    def settle(self) -> bool:
        """The trace is whole; one kind of step has one, whatever the rows' schema."""
        self._demand_begun()
        recorder = require_value(self._recorder)
        self._multiplier.settle()
        try:
            trace, self._recorder = recorder.trace(), None
        except MalformedError as error:
            raise other_operations(error.why) from None
        if self._found.setdefault(self._kind, trace) != trace:
            raise other_operations("the operations depend on the rows' schema")
        return True

    def traces(self) -> Traces:
        """All of them.

        Raises:
            JobError: ``other-operations``, if a step is missing.
        """
        if self._recorder is not None or next(self._forms, None) is not None:
            raise other_operations("the rehearsal ended too early")
        return tabulate(self._found)

    def _demand_begun(self) -> None:
        if self._recorder is None:
            raise _between_steps()


class TaskSteps:
    """The steps of one task of a run.

    Args:
        outsourcing: Of the job.
        multiplier: Makes the products.
        steps: Those that the task makes.
    """

    def __init__(
        self,
        outsourcing: Outsourcing,
        multiplier: Multiplier,
        steps: Iterator[StepPlace],
    ) -> None:
        self._outsourcing, self._multiplier = outsourcing, multiplier
        self._steps = steps
        self._under_way = self._again = False

    def begin(self) -> None:
        """The next step, or the last one again.

        Raises:
            JobError: ``other-operations``.
        """
        if self._under_way:
            raise _between_steps()
        if not self._again:
            step = next(self._steps, None)
            if step is None:
                raise other_operations(
                    "more steps were requested than there are rows for"
                )
            self._step = step
        self._held = StepTrace(self._outsourcing.traces.of(self._step.kind))
        self._layers = list[Layer]()
        self._under_way, self._again = True, False
        with self._connected():
            self._multiplier.begin(self._step.kind, self._step.number, self._held)

    def forward(self, exchange: Forward, x: F32, w: F32) -> F32:
        """See ``Multiplier.forward``."""
        self._demand_under_way()
        with self._connected():
            found = self._multiplier.forward(exchange, x, w)
        self._layers.append(exchange.layer)
        return found

    def backward(self, exchange: Backward, dy: F32) -> list[F32]:
        """See ``Multiplier.backward``."""
        self._demand_under_way()
        with self._connected():
            return self._multiplier.backward(exchange, dy)

    def settle(self) -> bool:
        """The verdict; see ``TaskParent.settle``.

        Raises:
            IntegrityError: ``wrong-product``, and the job does not forgive it.
            JobError: ``operand-not-finite``, ``other-operations``.
        """
        self._demand_under_way()
        self._held.end()
        try:
            self._judge()
        except (IntegrityError, MalformedError) as error:
            if error.code not in WRONG or not self._outsourcing.forgives():
                raise
            self._again = True
            return False
        return True

    def end(self) -> None:
        """Demand that there were all of them.

        Raises:
            JobError: ``other-operations``.
        """
        if self._under_way or self._again or next(self._steps, None) is not None:
            raise other_operations("the task ended too early")

    def make_whole(self) -> None:
        """Ask for the rest of a step that was left, with zeros; and judge it.

        A step whose servers are gone, or that was judged, is left alone.

        Raises:
            See ``settle``.
        """
        if not self._under_way:
            return
        for exchange in self._held.left:
            if isinstance(exchange, Forward):
                layer = exchange.layer
                self.forward(
                    exchange, _zeros(layer.shape("x")), _zeros(layer.shape("w"))
                )
            else:
                self.backward(exchange, _zeros(self._layers[exchange.call].shape("dy")))
        self._judge()

    def _judge(self) -> None:
        self._under_way = False
        try:
            self._multiplier.settle()
        except (IntegrityError, MalformedError) as error:
            if error.code in WRONG:
                self._outsourcing.tell(error)
            raise

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """A deviation leaves the step open, to be made whole; what servers did ends it."""
        try:
            yield
        except JobError:
            raise
        except BaseException:
            self._under_way = False
            raise

    def _demand_under_way(self) -> None:
        if not self._under_way:
            raise _between_steps()


def _steps_of(task: SliceTask, given: TaskInputs) -> Iterator[StepPlace]:
    """The steps that a task makes: a public rule."""
    most = task.settings.batch_rows
    for model, state in zip(task.models, given.states, strict=True):
        rows = [task.parts[part].rows for part in model.parts]
        if task.work == "train":
            first = 0 if state is None else state.step
            trained = task.settings.trained_rows(sum(rows))
            for place, size in enumerate(_batch_sizes(trained, most)):
                yield StepPlace(StepKind("train", size), first + place)
        elif task.work == "heldout":
            for each in rows:
                for place, size in enumerate(_batch_sizes(each, most)):
                    yield StepPlace(StepKind("evaluate", size), place)


def step_forms(
    plan: Sequence[VisitBatch],
    agreement: Agreement,
    settings: TrainingSettings,
    *,
    alone: bool,
) -> tuple[StepForm, ...]:
    """Every kind of steps that a plan makes, once for each schema.

    Args:
        plan: Groups of slices; each is trained on as one table.
        agreement: Has the resources.
        settings: Of the loop.
        alone: Whether each owner's own rows are trained on as well.
    """
    found: dict[bytes, StepForm] = {}
    for stops in (group.stops for group in plan):
        of = {stop.resource: agreement.resource(stop.resource) for stop in stops}
        phase: Phase = "train" if stops[0].purpose == "train" else "evaluate"
        tables = [[stop] for stop in stops]
        if phase == "train":
            owners = {stop.holder for stop in stops} if alone else set()
            tables = [[s for s in stops if s.holder == each] for each in owners]
            tables.append(list(stops))
        for table in tables if stops[0].purpose != "prepare" else ():
            for rows in _batch_sizes(
                sum(stop.rows for stop in table), settings.batch_rows
            ):
                form = StepForm(phase, rows, of[table[0].resource].schema)
                found[encode(form)] = form
    return tuple(found.values())


def first_forms(
    agreement: Agreement, settings: TrainingSettings, *, outsourced: bool
) -> tuple[StepForm, ...]:
    """The steps that a job is expected to make first: on its first table to train on.

    None of a job that outsources products: they would have to be asked for.
    """
    tables = [each for each in agreement.resources if each.part == "train"]
    tables = [] if outsourced else tables[:1]
    return tuple(
        StepForm("train", min(each.rows, settings.batch_rows), each.schema)
        for each in tables
    )


def _batch_sizes(rows: int, most: int) -> list[int]:
    """Rows of each batch, in order."""
    return [min(most, rows - first) for first in range(0, rows, most)]


def _zeros(shape: tuple[int, ...]) -> F32:
    return np.zeros(shape, np.float32)


def _between_steps() -> SealiftError:
    return MalformedError(
        "the message is not a request",
        why="it asks for a product between two steps",
        code="bad-message",
    )
