"""Progress as short plain lines: for a file, a pipe, a CI log."""

from __future__ import annotations

from typing import TextIO

from sealift.lab.demo.progress import Progress, VisitSeen
from sealift.lab.demo.tasks.task import Metric
from sealift.lab.demo.words import DEVELOPMENT, say_banner, say_bytes, say_loudly
from sealift.train.eventlines import RoleEvent


class Lines:
    """Prints a line when something worth one has happened.

    Args:
        stream: Usually stderr.
        headline: What is told of a visit to held-out rows.
        level: That the demo will show.
    """

    def __init__(
        self, stream: TextIO, headline: Metric, level: str = DEVELOPMENT
    ) -> None:
        self._stream = stream
        self._headline = headline
        self.say(f"{say_loudly(level)}: {say_banner(level)}")

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *exc: object) -> None:
        """Nothing is left open."""

    def say(self, line: str) -> None:
        """Print a line."""
        print(f"sealift: {line}", file=self._stream, flush=True)

    def watch(self, progress: Progress, event: RoleEvent) -> None:
        """Print what this event is worth."""
        if event.kind == "relay.registered":
            self.say(f"up: {event.text('name')}")
        elif event.kind == "job.ready":
            keys = f"{progress.keys} keys released"
            self.say(
                f"accelerator ready at level {progress.level}, {keys}, "
                f"sandbox: {progress.sandbox or 'none'}"
            )
        elif event.kind == "visit.ended":
            visit = progress.visit(event.text("visit"))
            if visit is not None:
                self._visit(progress, visit)
        elif event.kind == "checkpoint.missed":
            self.say(f"no checkpoint {event.text('number')}: {event.text('line')}")

    def _visit(self, progress: Progress, visit: VisitSeen) -> None:
        if not visit.verified:
            self.say(
                f"visit {visit.number} of {visit.holder} REFUSED [{visit.reason}]: "
                f"{visit.line}; revoked, {say_bytes(visit.scrubbed_bytes)} scrubbed"
            )
            return
        done = progress.verified
        if visit.purpose == "heldout":
            headline = self._headline
            found = headline.say(visit.metrics.get(headline.name, 0.0))
            self.say(
                f"held-out rows of {visit.holder}: {headline.title}, {found}, "
                f"after epoch {visit.epoch + 1}"
            )
        elif len(done) % 12 == 0:
            self.say(_line(progress, visit))


def _line(progress: Progress, visit: VisitSeen) -> str:
    loss = visit.metrics.get("loss", 0.0)
    return (
        f"{len(progress.verified)} of {progress.planned} visits, key epoch "
        f"{visit.number}, loss {loss:.3f} at {visit.holder}, "
        f"{say_bytes(progress.sealed_bytes)} sealed, "
        f"{progress.transfer_s:.2f} s in transfer"
    )
