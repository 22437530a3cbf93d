"""What a person sees of a run: a line per pass over all tables, and for what goes wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TextIO

from sealift.data.schedule.visits import plan_job, say_bytes
from sealift.errors import visible
from sealift.events import metrics_of
from sealift.release.agreement import Agreement
from sealift.train.job.roleprocesses import RoleEvent
from sealift.train.job.settings import JobTable
from sealift.train.sandbox.confine import Confinement
from sealift.travel.peers import say_role

SHORT_S: Final = 2.0  # what takes no longer needs no word
LONG_S: Final = 180.0


@dataclass(slots=True)
class _Pass:
    """Over all tables, for one purpose."""

    purpose: str
    epoch: int
    visits: int = 0
    rows: int = 0
    sealed_bytes: int = 0
    sums: dict[str, float] = field(default_factory=dict)

    def take(self, event: RoleEvent) -> None:
        """One visit; what is let out of it are means over its rows."""
        rows = int(event.fields["rows"])
        self.visits += 1
        self.rows += rows
        self.sealed_bytes += int(event.fields["sealed_bytes"])
        for name, value in metrics_of(event.fields).items():
            self.sums[name] = self.sums.get(name, 0.0) + value * rows

    def say_numbers(self) -> str:
        """Means over all rows."""
        return _say_numbers({n: sum_ / self.rows for n, sum_ in self.sums.items()})


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


class TrainLines:
    """One line per epoch and for whatever goes wrong; with ``watch``, per visit.

    Args:
        agreement: Names the holders.
        job: Has the number of epochs.
        watch: A line for every visit.
        stream: Where lines go.
    """

    def __init__(
        self, agreement: Agreement, job: JobTable, *, watch: bool, stream: TextIO
    ) -> None:
        self._owners = agreement.data_owners
        self._epochs = job.training.epochs
        self._watch = watch
        self._stream = stream
        self._job, self._agreement = job, agreement
        self._pass = _Pass("", -1)
        self._ahead: _Ahead | None = None
        self._now_s = 0.0

    def take(self, event: RoleEvent) -> None:
        """Say what a person wants to know of an event."""
        self._now_s = event.t_s
        match event.kind:
            case "orchestrator.listening":
                place = f"{event.text('host')}:{event.text('port')}"
                self.say(f"waiting at {place} for {', '.join(self._owners)}")
            case "role.arrived":
                who = say_role(event.text("role"), event.text("name"))
                self.say(f"{who} is here")
            case "job.ready":
                level, keys = event.text("level"), event.text("keys")
                self.say(f"the job starts: level {level}, {keys} keys released")
                self.say(Confinement.parse(event.text("sandbox")).say())
                size = say_bytes(int(event.fields["buffer_bytes"]))
                self.say(f"buffer of a visit: {size}: {event.text('why')}")
                self._ahead = self._plan_from(event)
            case "job.gathered" | "round.ended" if "holders" not in event.fields:
                self.say(self._group_line(event))
            case "visit.ended":
                self._take_visit(event)
            case "visit.skipped" | "visit.again":
                self.say(_missing_line(event))
            case "checkpoint.restored":
                number, group = event.text("number"), event.text("position")
                self.say(f"goes on from checkpoint {number}, at group {group}")
            case "checkpoint.missed" | "checkpoint.kept":
                self.say(f"{event.kind.replace('.', ' ')}: {event.text('line')}")
            case (
                "role.refused"
                | "holder.missing"
                | "release.missing"
                | "accelerator.lost"
            ):
                self.say(event.text("line"))

    def _group_line(self, event: RoleEvent) -> str:
        if event.kind == "job.gathered":
            return f"{event.text('ranks')} ranks are here"
        return (
            f"{event.text('purpose')} epoch {int(event.fields['epoch']) + 1} of "
            f"{self._epochs}: {event.text('rows')} rows in "
            f"{float(event.fields['seconds']):.2f} s"
            f"{_say_numbers(metrics_of(event.fields), what='mean ')}"
        )

    def _take_visit(self, event: RoleEvent) -> None:
        if event.text("outcome") != "verified":
            self.say(f"a visit to {event.text('holder')} failed: {_cause(event)}")
        else:
            self._count(event)
        if self._watch:
            self.say(self._visit_line(event))

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
            self.say(
                f"epoch {seen.epoch + 1} of {self._epochs}: {seen.visits} visits, "
                f"{seen.sealed_bytes / 1000:.0f} kB sealed{numbers}{left}"
            )
        elif seen.purpose == "heldout":
            rows = f"{seen.rows} held-out rows"
            self.say(f"after epoch {seen.epoch + 1}: {rows}{numbers}{left}")

    def _visit_line(self, event: RoleEvent) -> str:
        seconds = sum(
            float(value) for name, value in event.fields.items() if name.endswith("_s")
        )
        return (
            f"visit {event.text('number')} {event.text('holder')} "
            f"{event.text('purpose')}: {event.text('rows')} rows in "
            f"{seconds:.2f} s{_say_numbers(metrics_of(event.fields))}"
        )

    def say(self, line: str) -> None:
        """One line for people."""
        print(visible(f"sealift: {line}"), file=self._stream, flush=True)


def _say_numbers(metrics: Mapping[str, float], what: str = "") -> str:
    """``, accuracy 0.9, loss 0.31``."""
    return "".join(f", {what}{name} {metrics[name]:.4g}" for name in sorted(metrics))


def _missing_line(event: RoleEvent) -> str:
    if event.kind == "visit.skipped":
        return f"skipped {event.text('holder')}: {_cause(event)}"
    seconds = float(event.fields["pause_s"])
    return f"asks {event.text('holder')} again in {seconds:.1f} s"


def _cause(event: RoleEvent) -> str:
    return f"{event.text('line')} [{event.text('reason')}]"
