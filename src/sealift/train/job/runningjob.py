"""A job that an accelerator has opened: cargo in, results by the output rule out.

It goes on in the shape in which it began (rule N5): an orchestrator that restarts itself
may not ask for another cut, other visits or another order. A checkpoint is bound to the
shape as well; ``JobShapes`` is for what has none yet.

When its state was found changed it is taken up again from its last checkpoint (rule H1).
Nothing that was made from the changed state counts: visits under way are scrubbed, the
session ends without a word, and the accelerator comes back like any other one, with a
fresh instance key. More than a few times is no accident of memory: then the job ends.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from sealift.data.schedule.memory import free_memory_bytes
from sealift.data.schedule.visits import BufferChoice, Stop, choose_buffer, plan_job
from sealift.data.schema.document import schema_from_plain
from sealift.data.schema.rows import demand_rows
from sealift.data.schema.schema import Schema
from sealift.errors import JobError, MalformedError, PolicyError, SealiftError
from sealift.events import Sink, discard, emit
from sealift.ids import Digest
from sealift.release.agreement import Agreement, OutputRule, Resource
from sealift.session.session import Session
from sealift.train.job.checkpoints import Checkpoints
from sealift.train.job.releasedkeys import ReleasedKeys
from sealift.train.loop.faults import RecipeError
from sealift.train.loop.products import Outsourcing, first_forms
from sealift.train.loop.states import TrainerState
from sealift.train.loop.statistics import Measured, let_out
from sealift.train.loop.tasks import Workplace
from sealift.train.loop.trainer import Trainer
from sealift.train.output.accounts import PackedUses
from sealift.train.output.handout import Handout, HeldOut
from sealift.train.sandbox.confine import Confinement
from sealift.train.worker.process import garbled
from sealift.travel.accelerator.rules import RulesProgress, VisitRules
from sealift.travel.accelerator.setup import GroupResult, LoadedCargo, StartOverError
from sealift.travel.settings import JobSettings, TrainingSettings
from sealift.travel.visit.messages import JobReady

MOST: Final = 3
CHANGED: Final = "state-changed"


class Restarts:
    """How often this process may still take its job up again.

    Args:
        most: 0 ends the job at once.
        sink: Gets ``state.changed``.
    """

    def __init__(self, most: int = 0, *, sink: Sink = discard) -> None:
        self._left = most
        self._sink = sink

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """While a state is used.

        Raises:
            StartOverError: if it was found changed and the job may be taken up again.
        """
        try:
            yield
        except JobError as error:
            if error.code != CHANGED or not self._left:
                raise
            self._left -= 1
            emit(self._sink, "state.changed", line=str(error), left=self._left)
            again = StartOverError(error.what)
        else:
            return
        raise again  # out here, so that nothing of the state is anybody's context


def open_training(
    agreement: Agreement,
    workplace: Workplace,
    settings: TrainingSettings,
    *,
    number: int | None = None,
    products: Outsourcing | None = None,
) -> Trainer:
    """What trains a job, in a sandbox that the agreement is content with.

    Args:
        agreement: Names levels and owners.
        workplace: Where the recipe runs.
        settings: Of the loop.
        number: Of the job's slice, if it has several.
        products: Of a job that outsources them.

    Raises:
        JobError: if the recipe does not load.
        UnavailableError: code ``no-sandbox``, where the agreement demands one.
    """
    Confinement.parse(workplace.sandbox).require(agreement.accept)
    if workplace.on_gpu:  # on a CPU it took a tenth more of the cores than it saved
        forms = first_forms(agreement, settings, outsourced=products is not None)
        workplace.stand_by(settings, forms)
    training = Trainer.under(
        agreement,
        workplace,
        settings,
        number=number,
        moves=number is not None,
        products=products,
    )
    if not settings.prepare:  # else build() may ask for what is not there
        training.build()
    return training


def check_cargo_rows(cargo: LoadedCargo) -> None:
    """Demand that a party's rows fit its schema.

    Raises:
        MalformedError: code ``bad-row``, with the field.
    """
    demand_rows(cargo.memory.view, _schema_of(cargo.resource))


def columns_of(resource: Resource) -> bytes:
    """What a resource's file must have been sealed as, by the agreement."""
    return _schema_of(resource).columns


def _schema_of(resource: Resource) -> Schema:
    return schema_from_plain(resource.schema, source=resource.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgress:
    """A job between two groups of its plan, as its checkpoints keep it.

    Attributes:
        buffer_bytes: Largest cargo of one visit; the plan depends on it.
        rules: What the accelerator has counted.
        measured: Held-out numbers.
        uses: What rows were used for.
        resumed: How often the job went on from a checkpoint.
        best: Held-out numbers of the state that would be handed out.
    """

    buffer_bytes: int
    rules: RulesProgress
    measured: HeldOut
    uses: PackedUses
    resumed: int = 0
    best: HeldOut = field(default_factory=HeldOut)


@dataclass(slots=True, kw_only=True)
class RunningJob:
    """One job.

    Attributes:
        settings: As the orchestrator asks.
        level: Assurance level of our evidence.
        choice: The buffer of a visit.
        rule: What may leave.
        tell: Tells the orchestrator something, if it is there.
        checkpoints: Where it is kept; None begins again.
        position: Of the first group that is still to be worked on.
    """

    name: str
    settings: JobSettings
    level: str
    choice: BufferChoice
    keys: ReleasedKeys
    rule: OutputRule
    sandbox: str
    training: Trainer
    handout: Handout
    rules: VisitRules
    checkpoints: Checkpoints[JobProgress] | None
    restarts: Restarts
    tell: Callable[[object], None]
    position: int = 0

    def ready(self) -> JobReady:
        """What the orchestrator plans with."""
        return JobReady(
            self.level,
            len(self.keys.released),
            position=self.position,
            buffer_bytes=self.choice.buffer_bytes,
            why=self.choice.why,
            sandbox=self.sandbox,
        )

    def restore(self, resources: Sequence[Resource]) -> None:
        """Go on from the checkpoint that counts, if there is one.

        Raises:
            RefusedError: if it is not what it must be.
            UnavailableError: if it is missing, or its buffers do not fit in here.
        """
        found = self.checkpoints and self.checkpoints.restore()
        if not found:
            return
        progress = found.progress
        # The plan, and so every position in it, depends on the size of the buffer.
        visits = replace(self.settings.visits, buffer_bytes=progress.buffer_bytes)
        choose_buffer(resources, visits, free_memory_bytes())
        self.choice = BufferChoice(
            progress.buffer_bytes, "the size with which the job began"
        )
        self.position = found.position
        self.rules.restore(progress.rules)
        self.handout.restore(
            progress.measured, progress.resumed + 1, progress.uses.unpack()
        )
        self.training.restore(TrainerState.from_parts(found.states))

    def planned(self, resources: Sequence[Resource]) -> Container[tuple[int, Stop]]:
        """Every visit of the job, with its group: the orchestrator gets no other one."""
        plan = plan_job(resources, self.settings.visits, self.choice.buffer_bytes)
        return frozenset((group.position, s) for group in plan for s in group.stops)

    def work(self, cargo: Sequence[LoadedCargo]) -> GroupResult:
        """Work on a group; what may leave of it.

        Raises:
            JobError: ``statistics-withheld``, if it would go on from sums that may not
                leave; and whatever is wrong with the recipe.
            StartOverError: if a state was found changed since it was last used.
        """
        purpose = cargo[0].stop.purpose
        if purpose != "prepare" and self.training.statistics:
            self.handout.check_totals()
        try:
            with self.restarts.guarded():
                found = self.training.work(cargo, purpose)
        except MalformedError as error:
            if error.code != "bad-row":
                raise
            failed: SealiftError = (
                garbled()
            )  # rows were checked when they came: it is the
            # recipe that says so, to have a party's visit left out.
        except RecipeError as error:
            failed = self.handout.hide(error, self.tell)
        else:
            return self._let_out(found)
        raise failed  # out here: what is hidden is nobody's context

    def _let_out(self, found: Mapping[str, Measured]) -> GroupResult:
        let = {name: let_out(each, self.rule) for name, each in found.items()}
        curve = next(iter(let.values())).curve  # one for the group: it is worked as one
        return GroupResult({name: each.metrics for name, each in let.items()}, curve)

    def note(self, position: int) -> None:
        """A group was worked on; its end may be kept."""
        self.position = position
        if self.checkpoints is None:
            return
        with self.restarts.guarded():
            self.checkpoints.note(
                position, self._progress, lambda: self.training.snapshot().to_parts()
            )

    def _progress(self) -> JobProgress:
        return JobProgress(
            buffer_bytes=self.choice.buffer_bytes,
            rules=self.rules.progress(),
            measured=self.handout.heldout.measured(),
            uses=PackedUses.of(self.handout.uses()),
            resumed=self.handout.resumed,
        )

    def hand_out(self, control: Session, *, model: bool) -> None:
        """Send what may leave; see ``Handout.send``."""
        if self.checkpoints is not None:
            self.handout.checkpoints = self.checkpoints.counted
        self.handout.send(control, self.training, model=model)

    def end(self) -> None:
        """Nobody goes on with it."""
        if self.checkpoints is not None:
            self.checkpoints.finish()

    def verify(self) -> None:
        """Demand that the states are what they were, before anything leaves.

        Raises:
            JobError: code ``state-changed``.
            StartOverError: the same, if the job may be taken up again.
        """
        with self.restarts.guarded():
            self.training.verify()


class JobShapes:
    """What the jobs that this process began look like."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[Digest, BufferChoice]] = {}

    def hold(self, job: str, shape: Digest, choice: BufferChoice) -> BufferChoice:
        """The buffer that the job began with; ``choice``, if it begins.

        Raises:
            PolicyError: ``other-shape``.
        """
        began, first = self._held.setdefault(job, (shape, choice))
        if shape != began:
            raise PolicyError(
                f"the job {job} began with other settings",
                why=(
                    "the split of rows, the passes, the order, the batches and the "
                    "seed must stay the same, because they decide what the results "
                    "reveal"
                ),
                code="other-shape",
            )
        return first
