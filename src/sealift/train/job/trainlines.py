"""What a person sees of a run: a line per pass over all tables, and for what goes wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sealift.data.schedule.visits import plan_here, plan_job
from sealift.events import Event, metrics_of
from sealift.release.agreement import MAX_DIGITS, Agreement
from sealift.train.job.roleprocesses import RoleEvent
from sealift.train.job.sentences import (
    say_numbers,
    say_round,
    say_slice,
    say_visit,
    say_withheld,
    sentence,
)
from sealift.train.job.settings import JobTable
from sealift.train.job.talk import Talk, TalkativeSink
from sealift.train.loop.measures import (
    joint_numbers,
    shown_numbers,
    withheld_numbers,
)
from sealift.train.sandbox.confine import Confinement
from sealift.travel.peers import accelerator_names, rank_names

SHORT_S: Final = 2.0  # a shorter rest is not worth a word
LONG_S: Final = 180.0


@dataclass(slots=True)
class _Pass:
    """Over all tables, for one purpose."""

    purpose: str
    epoch: int
    visits: int = 0
    rows: int = 0
    sealed_bytes: int = 0
    parts: list[tuple[int, Mapping[str, float]]] = field(default_factory=list)

    def take(self, event: RoleEvent) -> None:
        """One visit, and what is let out of it."""
        rows = int(event.fields["rows"])
        self.visits += 1
        self.rows += rows
        self.sealed_bytes += int(event.fields.get("sealed_bytes", 0))
        self.parts.append((rows, metrics_of(event.fields)))

    def say_numbers(self) -> str:
        """Numbers over all rows."""
        whole = self.purpose == "train"
        return say_numbers(joint_numbers(self.parts, MAX_DIGITS, whole=whole))


@dataclass(slots=True)
class _Ahead:
    """How much of the plan is left."""

    began_s: float
    visits: int
    done: int = 0

    def say_left(self, now_s: float) -> str:
        """Judged by the visits so far; empty for an instant."""
        left_s = (now_s - self.began_s) / self.done * (self.visits - self.done)
        if left_s <= SHORT_S:
            return ""
        minutes = f"{left_s / 60:.0f} min" if left_s > LONG_S else f"{left_s:.0f} s"
        return f", about {minutes} left"


_SHOWN: Final = frozenset(
    {
        "accelerator.lost",
        "checkpoint.kept",
        "checkpoint.missed",
        "checkpoint.restored",
        "checkpoint.stays",
        "holder.missing",
        "job.gathered",
        "job.limited",
        "job.ready",
        "job.stopped",
        "orchestrator.listening",
        "privacy.spent",
        "release.missing",
        "role.arrived",
        "role.refused",
        "visit.again",
        "visit.skipped",
    }
)


class TrainLines:
    """One line per epoch and for whatever goes wrong; with ``watch``, per visit.

    Args:
        agreement: Says what is planned.
        job: Has the number of epochs.
        watch: A line for every visit.
        talk: Where lines go.
    """

    def __init__(
        self, agreement: Agreement, job: JobTable, *, watch: bool, talk: Talk
    ) -> None:
        self._epochs = job.training.epochs
        self._watch = watch
        self._talk = talk
        self._sink = TalkativeSink(talk, rank_names(agreement))
        self._job, self._agreement = job, agreement
        self._pass = _Pass("", -1)
        self._ahead: _Ahead | None = None
        self._now_s = 0.0

    def take(self, event: RoleEvent) -> None:
        """Say what a person wants to know of an event."""
        self._now_s = event.t_s
        said = self._sink.for_people(Event(event.kind, event.fields))
        if event.kind in _SHOWN:
            self.say(sentence(said.kind, said.fields))
        match event.kind:
            case "job.ready":
                self.say(Confinement.parse(event.text("sandbox")).say())
                if self._job.training.drop_last:
                    self.say(
                        "no loss of training is told where drop_last leaves rows out"
                    )
                self._ahead = self._plan_from(event)
            case "round.ended" if event.fields["rows"]:  # else nobody holds rows out
                self.say(
                    say_round(event.fields, f" of {self._epochs}")
                    + say_withheld(self._withheld(event), "an owner holds")
                )
            case "visit.ended" | "local.slice":
                self._take_visit(event)
        if event.process not in accelerator_names(self._agreement.ranks):
            self._sink.expect(said)

    def _withheld(self, event: RoleEvent) -> str:
        """Agreed numbers of held-out rows of which a round has none."""
        rule = self._agreement.output_rule
        if event.fields["purpose"] != "heldout" or rule.audience != "everyone":
            return ""
        shown = shown_numbers(metrics_of(event.fields))
        return ", ".join(withheld_numbers(rule.metrics, shown))

    def begin_here(self, t_s: float) -> None:
        """All slices of a plan of one process lie ahead."""
        groups = plan_here(self._agreement.resources, self._job.settings.visits)
        self._ahead = _Ahead(t_s, sum(len(group.stops) for group in groups))
        self._talk.wait_for("the first slice")

    def _take_visit(self, event: RoleEvent) -> None:
        local = event.kind == "local.slice"
        failed = not local and event.text("outcome") != "verified"
        if not failed:
            self._count(event)
        if failed or self._watch:
            self.say(say_slice(event.fields) if local else say_visit(event.fields))

    def _plan_from(self, event: RoleEvent) -> _Ahead:
        resources, fields = self._agreement.resources, event.fields
        visits, nbytes = self._job.settings.visits, int(fields["buffer_bytes"])
        left = plan_job(resources, visits, nbytes)[int(fields["position"]) :]
        return _Ahead(event.t_s, sum(len(group.stops) for group in left))

    def _count(self, event: RoleEvent) -> None:
        purpose, epoch = event.text("purpose"), int(event.fields["epoch"])
        if (purpose, epoch) != (self._pass.purpose, self._pass.epoch):
            self.say_pass()
            self._pass = _Pass(purpose, epoch)
        self._pass.take(event)
        if self._ahead is not None:
            self._ahead.done += 1

    def say_pass(self) -> None:
        """The line of the pass over all tables that ended, if there is one."""
        seen = self._pass
        if not seen.visits:
            return
        numbers, left = seen.say_numbers(), ""
        if self._ahead is not None and self._ahead.done:
            left = self._ahead.say_left(self._now_s)
        if seen.purpose == "train":
            kilobytes = seen.sealed_bytes / 1000
            what = f"visits, {kilobytes:,.0f} kB sealed" if kilobytes else "slices"
            self.say(
                f"epoch {seen.epoch + 1} of {self._epochs}: {seen.visits:,} {what}"
                f"{numbers}{left}"
            )
        elif seen.purpose == "heldout":
            rows = f"{seen.rows:,} held-out rows"
            self.say(f"after epoch {seen.epoch + 1}: {rows}{numbers}{left}")

    def say(self, line: str) -> None:
        """One line for people."""
        self._talk.say(line)
