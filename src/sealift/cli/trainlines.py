"""Progress of ``sealift train`` as plain lines on stderr."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TextIO

from sealift.release.agreement import Agreement
from sealift.release.visible import visible
from sealift.train.eventlines import RoleEvent
from sealift.train.sandbox.confine import Confinement
from sealift.train.settings import JobTable
from sealift.travel.peers import say_role
from sealift.travel.sizing import say_bytes


@dataclass(slots=True)
class _Epoch:
    number: int
    visits: int = 0
    rows: int = 0
    sealed_bytes: int = 0
    loss: float = 0.0


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
        self._epoch = _Epoch(-1)

    def take(self, event: RoleEvent) -> None:
        """Say what a person wants to know of an event."""
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
            case "visit.ended":
                self._take_visit(event)
            case "visit.skipped":
                self.say(f"skipped {event.text('holder')}: {_cause(event)}")
            case "visit.again":
                seconds = float(event.fields["pause_s"])
                self.say(f"asks {event.text('holder')} again in {seconds:.1f} s")
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

    def _take_visit(self, event: RoleEvent) -> None:
        if event.text("outcome") != "verified":
            self.say(f"a visit to {event.text('holder')} failed: {_cause(event)}")
        elif event.text("purpose") == "train":
            self._count(event)
        if self._watch:
            self.say(self._visit_line(event))

    def _count(self, event: RoleEvent) -> None:
        number = int(event.fields["epoch"])
        if number != self._epoch.number:
            self.say_epoch()
            self._epoch = _Epoch(number)
        rows = int(event.fields["rows"])
        self._epoch.visits += 1
        self._epoch.rows += rows
        self._epoch.sealed_bytes += int(event.fields["sealed_bytes"])
        self._epoch.loss += float(event.fields.get("metric.loss", 0.0)) * rows

    def say_epoch(self) -> None:
        """The line of the epoch that ended, if there is one."""
        epoch = self._epoch
        if epoch.visits:
            self.say(
                f"epoch {epoch.number + 1} of {self._epochs}: {epoch.visits} visits, "
                f"{epoch.sealed_bytes / 1000:.0f} kB sealed, "
                f"loss {epoch.loss / epoch.rows:.4g}"
            )

    def _visit_line(self, event: RoleEvent) -> str:
        loss = event.fields.get("metric.loss")
        shown = f", loss {loss:.4g}" if isinstance(loss, float) else ""
        seconds = sum(
            float(value) for name, value in event.fields.items() if name.endswith("_s")
        )
        return (
            f"visit {event.text('number')} {event.text('holder')} "
            f"{event.text('purpose')}: {event.text('rows')} rows in "
            f"{seconds:.2f} s{shown}"
        )

    def say(self, line: str) -> None:
        """One line for people."""
        print(visible(f"sealift: {line}"), file=self._stream, flush=True)


def _cause(event: RoleEvent) -> str:
    return f"{event.text('line')} [{event.text('reason')}]"
