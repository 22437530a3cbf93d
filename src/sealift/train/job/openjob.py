"""A job that an accelerator has opened: keys collected, recipe loaded, ready to work."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from sealift.data.schedule.memory import free_memory_bytes
from sealift.data.schedule.visits import BufferChoice, Stop, choose_buffer, plan_job
from sealift.release.agreement import Resource
from sealift.train.checkpoint.progress import JobCheckpoints, JobProgress
from sealift.train.job.keyring import Keyring
from sealift.train.job.restarts import Restarts
from sealift.train.job.workbench import Workbench
from sealift.train.output.handout import Handout
from sealift.travel.accelerator.rules import VisitRules
from sealift.travel.accelerator.setup import GroupResult, LoadedCargo
from sealift.travel.settings import JobSettings
from sealift.travel.visit.messages import JobReady


@dataclass(slots=True, kw_only=True)
class OpenJob:
    """One job.

    Attributes:
        settings: As the orchestrator asks.
        level: Assurance level of our evidence.
        choice: The buffer of a visit.
        position: Of the first group that is still to be worked on.
    """

    name: str
    settings: JobSettings
    level: str
    choice: BufferChoice
    keyring: Keyring
    bench: Workbench
    handout: Handout
    rules: VisitRules
    checkpoints: JobCheckpoints
    restarts: Restarts
    position: int = 0

    def ready(self) -> JobReady:
        """What the orchestrator plans with."""
        return JobReady(
            self.level,
            len(self.keyring.released),
            position=self.position,
            buffer_bytes=self.choice.buffer_bytes,
            why=self.choice.why,
            sandbox=self.bench.sandbox,
        )

    def restore(self, resources: Sequence[Resource]) -> None:
        """Go on from the checkpoint that counts, if there is one.

        Raises:
            RefusedError: if it is not what it must be.
            UnavailableError: if it is missing, or its buffers do not fit in here.
        """
        found = self.checkpoints.restore()
        if found is None:
            return
        progress = found.progress
        # The plan, and so every position in it, depends on the size of the buffer.
        visits = replace(self.settings.visits, buffer_bytes=progress.buffer_bytes)
        choose_buffer(resources, visits, free_memory_bytes())
        self.choice = BufferChoice(progress.buffer_bytes, "as the job began")
        self.position = found.position
        self.rules.restore(progress.rules)
        self.handout.restore(progress.measured, progress.resumed + 1)
        self.bench.restore(found.states)

    def planned(self, resources: Sequence[Resource]) -> Container[tuple[int, Stop]]:
        """Every visit of the job, with its group: the orchestrator gets no other one."""
        plan = plan_job(resources, self.settings.visits, self.choice.buffer_bytes)
        return frozenset((group.position, s) for group in plan for s in group.stops)

    def work(self, cargo: Sequence[LoadedCargo]) -> GroupResult:
        """Work on a group.

        Raises:
            JobError: ``statistics-withheld``, if it would go on from sums that may not
                leave; and whatever is wrong with the recipe.
            StartOverError: if a state was found changed since it was last used.
        """
        if cargo[0].offer.purpose != "prepare" and self.bench.training.statistics:
            self.handout.check_totals()
        with self.restarts.guarded():
            return self.bench.work(cargo)

    def note(self, position: int) -> None:
        """A group was worked on; its end may be kept."""
        self.position = position
        progress = JobProgress(
            buffer_bytes=self.choice.buffer_bytes,
            rules=self.rules.progress(),
            measured=self.handout.measured(),
            resumed=self.handout.resumed,
        )
        with self.restarts.guarded():
            self.checkpoints.note(position, progress, self.bench.snapshot)

    def verify(self) -> None:
        """Demand that the states are what they were, before anything leaves.

        Raises:
            JobError: code ``state-changed``.
            StartOverError: the same, if the job may be taken up again.
        """
        with self.restarts.guarded():
            self.bench.training.verify()
