"""A whole job with accelerators that may be lost: where it goes on, what is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest

from sealift.data.schedule.visits import Stop, plan_job
from sealift.errors import JobError, PeerError, PolicyError, UnavailableError
from sealift.events import Event
from sealift.ids import VisitId
from sealift.travel.orchestrator.job import Hopes, Orchestrator, RunSummary
from sealift.travel.orchestrator.sessions import LiveSessions
from sealift.travel.settings import JobSettings
from sealift.travel.visit.messages import (
    Failed,
    Finished,
    FinishJob,
    OfferVisit,
    Output,
    OutputKept,
    StartJob,
    VisitEnded,
)
from tests.sim.scripted import ScriptedAccelerator, ScriptedHolder
from tests.sim.settings import job_settings
from tests.sim.visit_parts import FakeClock
from tests.worlds.consortium import make_consortium

OWNERS = ("ada", "bern", "cleo")
CONSORTIUM = make_consortium(OWNERS)
AGREEMENT = CONSORTIUM.verified()
SIZE = max(each.total_bytes for each in AGREEMENT.agreement.resources)
ASKED = job_settings(epochs=2, rejoin_s=30.0)
PLAN = plan_job(AGREEMENT.agreement.resources, ASKED.visits, SIZE)
START = StartJob("job", b"{}")


class Kept:
    """The run's folder."""

    def __init__(self) -> None:
        self.parts: list[Output] = []
        self.faults: list[Output] = []
        self.summary: RunSummary | None = None
        self.cleared = 0

    def clear(self) -> None:
        self.parts.clear()
        self.cleared += 1

    def write(self, output: Output) -> None:
        self.parts.append(output)

    def keep_fault(self, output: Output) -> None:
        self.faults.append(output)

    def keep(self, summary: RunSummary) -> None:
        self.summary = summary


class Job:
    """An orchestrator, its holders, and accelerators that come one after another."""

    def __init__(
        self,
        *accelerators: ScriptedAccelerator,
        asked: JobSettings = ASKED,
        hopes: Hopes = lambda _: True,
    ) -> None:
        self.clock = FakeClock()
        self.live = LiveSessions(clock=self.clock)
        self.holders = {name: ScriptedHolder(name) for name in OWNERS}
        for holder in self.holders.values():
            self.live.enter(holder)  # type: ignore[arg-type]
        self.accelerators = accelerators
        for former, following in pairwise(accelerators):
            former.on_death = lambda each=following: self.live.enter(each)  # type: ignore[misc]
        self.live.enter(accelerators[0])  # type: ignore[arg-type]
        self.events: list[Event] = []
        self.kept = Kept()
        self.orchestrator = Orchestrator(
            AGREEMENT,
            asked,
            sessions=self.live,
            signer=CONSORTIUM.identities[AGREEMENT.agreement.operator],
            job="job",
            clock=self.clock,
            sink=self.events.append,
            hopes=hopes,
        )

    def run(self) -> RunSummary:
        return self.orchestrator.run(START, self.kept)


def accelerator(position: int = 0, dies_after: int = -1) -> ScriptedAccelerator:
    return ScriptedAccelerator(
        FakeClock(), position=position, dies_after=dies_after, buffer_bytes=SIZE
    )


def positions(of: ScriptedAccelerator) -> list[int]:
    return [each.position for each in of.said if isinstance(each, OfferVisit)]


def test_a_job_without_faults() -> None:
    job = Job(accelerator())
    summary = job.run()
    assert (summary.visits, summary.skipped) == (len(PLAN), 0)
    assert job.kept.summary == summary
    assert [part.name for part in job.kept.parts] == ["model.sealed"]
    (only,) = job.accelerators
    assert summary.instances == (only.peer.instance,)
    assert positions(only) == list(range(len(PLAN)))
    assert isinstance(only.said[-1], OutputKept)
    (ready,) = [e for e in job.events if e.kind == "job.ready"]
    assert ready.fields["buffer_bytes"] == SIZE
    assert ready.fields["why"] == "so"
    for holder in job.holders.values():
        assert isinstance(holder.told, Finished)
        assert holder.told.outcome == "finished"


@pytest.mark.parametrize("position", [1, len(PLAN) - 1, len(PLAN)])
def test_it_begins_where_the_accelerator_says(position: int) -> None:
    """The orchestrator remembers nothing: it may be the one that was restarted."""
    job = Job(accelerator(position))
    assert job.run().visits == len(PLAN) - position
    assert positions(job.accelerators[0]) == list(range(position, len(PLAN)))


@pytest.mark.parametrize("dies_after", range(1, 16))
def test_another_accelerator_goes_on(dies_after: int) -> None:
    job = Job(accelerator(dies_after=dies_after), accelerator(position=2))
    summary = job.run()
    first, second = job.accelerators
    assert first.closed
    assert positions(second) == list(range(2, len(PLAN)))
    done = {at for at in positions(first) if at < 2}
    assert summary.visits in (len(PLAN) - 2, len(PLAN) - 2 + len(done), len(PLAN) - 1)
    assert [e for e in job.events if e.kind == "accelerator.lost"]
    ended = {e.fields["visit"] for e in job.events if e.kind == "visit.ended"}
    offered = {e.fields["visit"] for e in job.events if e.kind == "visit.offered"}
    assert ended == offered


def test_what_is_withheld_names_who_refused_and_why() -> None:
    """A run that failed for want of rows says what their holder said."""
    (only,) = accelerators = (accelerator(),)
    job = Job(
        *accelerators, asked=job_settings(epochs=2, rejoin_s=30.0, on_missing="wait")
    )
    only._clock = job.clock
    original = only._say

    def say(visit: VisitId) -> object:
        if only.offers[visit].holder != "bern":
            return original(visit)
        del only._next[visit]
        return VisitEnded(
            visit=visit, outcome="failed", reason="disk-full", line="it is full"
        )

    only._say = say  # type: ignore[method-assign]
    withheld = Failed("output-withheld", "bern had 0 visits of at least 1")
    only._tell = withholding(only._tell, withheld)  # type: ignore[method-assign]
    with pytest.raises(PolicyError) as failure:
        job.run()
    assert failure.value.code == "output-withheld"
    assert str(failure.value) == (
        "bern had 0 visits of at least 1. "
        "bern-heldout was skipped: it is full [disk-full]; "
        "bern-train was skipped: it is full [disk-full]"
    )


def withholding(
    tell: Callable[[object], bytes], failed: Failed
) -> Callable[[object], bytes]:
    return lambda said: tell(failed if isinstance(said, Output) else said)


def test_an_accelerator_that_dies_in_the_end() -> None:
    """Its last words come again, from the beginning."""
    whole = Job(accelerator())
    whole.run()
    said = len(_heard(whole.accelerators[0]))
    job = Job(accelerator(dies_after=said - 1), accelerator(position=len(PLAN)))
    assert job.run().visits == len(PLAN)
    assert job.kept.cleared == 2
    assert len(job.kept.parts) == 1


def _heard(of: ScriptedAccelerator) -> list[object]:
    told = (OfferVisit, StartJob, FinishJob, OutputKept)
    return [
        each
        for each in of.said
        if not isinstance(each, told)
        and type(each).__name__ not in ("Granted", "WorkVisits", "Withdrawn")
    ]


def test_nobody_is_waited_for_if_the_job_says_so() -> None:
    asked = job_settings(epochs=2, rejoin_s=0.0)
    job = Job(accelerator(dies_after=4), asked=asked)
    with pytest.raises(PeerError) as failure:
        job.run()
    assert failure.value.code == "session-truncated"
    assert job.holders["ada"].told.outcome == "failed"  # type: ignore[union-attr]
    assert job.kept.summary is None


def test_what_the_accelerator_refuses_is_not_asked_of_another() -> None:
    first = accelerator()
    first._ready = Failed("buffer-too-large", "9 TiB are needed")  # type: ignore[assignment]
    job = Job(first, accelerator())
    with pytest.raises(UnavailableError) as refusal:
        job.run()
    assert refusal.value.code == "buffer-too-large"
    assert job.accelerators[1].said == []


def test_where_it_failed_is_kept_for_its_reader() -> None:
    """Sealed: the orchestrator takes it, and does not look."""
    first, note = accelerator(), Output("fault.lab.json", b"sealed", last=True)
    told = iter([note, Failed("recipe-error", "the recipe failed")])
    first._say = lambda visit: next(told)  # type: ignore[method-assign]
    job = Job(first)
    with pytest.raises(JobError):
        job.run()
    assert job.kept.faults == [note]


def test_a_recipe_that_fails_is_not_run_by_another() -> None:
    first = accelerator()
    first._say = lambda visit: Failed("recipe-error", "at 3")  # type: ignore[method-assign]
    job = Job(first, accelerator())
    with pytest.raises(JobError):
        job.run()
    assert job.accelerators[1].said == []


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (job_settings(epochs=2, rejoin_s=30.0, buffers=2), "cargo-not-agreed"),
        (job_settings(epochs=2, rejoin_s=30.0, mixed=True), "cargo-not-agreed"),
        (job_settings(epochs=2, rejoin_s=30.0, lease_s=1e5), "lease-exceeds-agreement"),
    ],
)
def test_more_than_agreed_is_not_even_started(asked: JobSettings, code: str) -> None:
    job = Job(accelerator(), asked=asked)
    with pytest.raises(PolicyError) as refusal:
        job.run()
    assert refusal.value.code == code
    assert job.accelerators[0].said == []


def test_an_output_that_cannot_be_kept_is_not_confirmed() -> None:
    def full(summary: RunSummary) -> None:
        raise UnavailableError("the disk is full", code="disk-full")

    job = Job(accelerator())
    job.kept.keep = full  # type: ignore[method-assign]
    with pytest.raises(UnavailableError):
        job.run()
    assert not [s for s in job.accelerators[0].said if isinstance(s, OutputKept)]


@pytest.mark.parametrize("least", [1, len(OWNERS)])
def test_what_cannot_end_well_is_not_travelled(least: int) -> None:
    """A rule that wants rows of all owners is met by no visit without one of them."""

    def hopes(stops: Iterable[Stop]) -> bool:
        return len({stop.holder for stop in stops}) >= least

    job = Job(accelerator(), asked=job_settings(epochs=9), hopes=hopes)
    job.live.leave(job.holders["cleo"])  # type: ignore[arg-type]
    job.live.gather = lambda wanted, quiet_s: None  # type: ignore[method-assign]
    job.run()  # an accelerator that does not decide lets its output go
    offered = [s for s in job.accelerators[0].said if isinstance(s, OfferVisit)]
    assert bool(offered) is (least == 1)
    assert [s for s in job.accelerators[0].said if isinstance(s, FinishJob)]


def test_the_output_of_a_large_model_is_waited_for_as_long_as_work_is() -> None:
    """The accelerator seals the last checkpoint before it, which takes minutes."""

    class Patient(ScriptedAccelerator):
        waited: list[float | None]

        def receive(self, timeout_s: float | None = None) -> bytes:
            if any(isinstance(each, FinishJob) for each in self.said):
                self.waited.append(timeout_s)
            return super().receive(timeout_s)

    only = Patient(FakeClock(), position=0, dies_after=-1, buffer_bytes=SIZE)
    only.waited = []
    Job(only).run()
    assert only.waited
    assert only.waited[0] is not None
    assert only.waited[0] >= ASKED.run.work_s
