"""Progress while it is made: redrawn on a terminal, or as lines for a file or a pipe."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from statistics import fmean
from typing import Final, Protocol, Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sealift.attest.level import Level, say_level
from sealift.demo.folder import OWNERS
from sealift.demo.progress import Progress, RoundSeen, VisitSeen
from sealift.demo.tasks.task import Metric, Task
from sealift.demo.texts import ATTACK_IN_WORDS, say_banner
from sealift.train.job.roleprocesses import RoleEvent
from sealift.view.words import say_bytes, say_loudly

PHASES: Final = ("handshake", "load", "train", "scrub", "receipt")  # as dots
COLOUR_OF: Final = dict(zip(OWNERS, ("cyan", "magenta", "yellow"), strict=True))
SPARKS: Final = "▁▂▃▄▅▆▇█"
REFRESHES_PER_S: Final = 10
LINE_EVERY: Final = 12  # training visits


class View(AbstractContextManager["View"], Protocol):
    """Where progress goes."""

    def say(self, line: str) -> None:
        """Tell people what begins now."""
        ...

    def watch(self, progress: Progress, event: RoleEvent) -> None:
        """Show the state after an event."""
        ...


def open_view(task: Task, rehearse: Level | None) -> View:
    """The view that suits stderr, which begins with the level that the demo will show."""
    level = say_level(Level.DEVELOPMENT, rehearse)
    talk = Console(stderr=True)
    if talk.is_terminal:
        return Screen(talk, level)
    return Lines(sys.stderr, task.headline, level)


class Screen:
    """Redraws itself in place: who is visited, in which phase, what has been refused.

    Args:
        console: A terminal.
        level: That the demo will show.
    """

    def __init__(self, console: Console, level: str) -> None:
        self._level = level
        self._console = console
        self._said: list[str] = []
        self._progress: Progress | None = None
        self._live = Live(
            console=console,
            refresh_per_second=REFRESHES_PER_S,
            get_renderable=self._draw,
            transient=True,
        )

    def __enter__(self) -> Self:
        banner = Panel(
            Text(say_banner(self._level)),
            title=say_loudly(self._level),
            style="bold white on red",
            expand=False,
        )
        self._console.print(banner)
        self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.stop()

    def say(self, line: str) -> None:
        """Show a line below the banner."""
        self._said = [*self._said[-2:], line]

    def watch(self, progress: Progress, _event: RoleEvent) -> None:
        """Remember the state; the next refresh draws it."""
        self._progress = progress

    def _draw(self) -> RenderableType:
        progress, said = self._progress, Text("\n".join(self._said), style="dim")
        if progress is None:
            return said
        up = [name for name in progress.on_relay if name != "orchestrator"]
        roles = Text(f"{1 + len(up)} processes up: ", style="dim")
        roles.append("orchestrator " + " ".join(up))
        if progress.keys:
            roles.append(f"  ·  {progress.keys} data keys released", style="dim")
        if progress.rounds:
            return Group(said, roles, _rounds(progress))
        return Group(
            said, roles, _parties(progress), _bar(progress), _attacks(progress)
        )


def _parties(progress: Progress) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("holder", "phase", "key epoch", "loss", "loss over visits"):
        table.add_column(heading, header_style="dim")
    for owner in OWNERS:
        visits = [v for v in progress.trained if v.holder == owner]
        losses = [v.metrics.get("loss", 0.0) for v in visits]
        last = progress.last_of(owner)
        here = last if last is not None and last.under_way else None
        table.add_row(
            Text(owner, style=f"bold {COLOUR_OF[owner]}"),
            _phase(here),
            str(here.number) if here else "",
            f"{losses[-1]:.3f}" if losses else "",
            Text(_spark(losses), style=COLOUR_OF[owner]),
        )
    return table


def _rounds(progress: Progress) -> Table:
    """What all ranks' rounds came to so far."""
    trained = [each for each in progress.rounds if each.purpose == "train"]
    losses = [each.metrics.get("loss", 0.0) for each in trained]
    grid = Table.grid(padding=(0, 2, 0, 0))
    seconds = f"{trained[-1].seconds:.2f} s the last one" if trained else ""
    loss = f"loss {losses[-1]:.3f}" if losses else ""
    grid.add_row(f"{len(trained)} rounds", loss, _spark(losses), seconds)
    return grid


def _phase(visit: VisitSeen | None) -> Text:
    """Five dots, the phases that were reached filled in."""
    if visit is None:
        return Text("· · · · ·          ", style="dim")
    now = visit.marks[-1][0] if visit.marks else ""
    reached = sum(phase in dict(visit.marks) for phase in PHASES)
    dots = " ".join("●" if index < reached else "·" for index in range(len(PHASES)))
    style = "red" if visit.reason else "green"
    return Text(f"{dots} {'refused' if visit.reason else now:<9}", style=style)


def _spark(losses: list[float]) -> str:
    shown = losses[-24:]
    top = max(shown, default=0.0) or 1.0
    return "".join(SPARKS[min(7, int(loss / top * 7.99))] for loss in shown)


def _bar(progress: Progress) -> Table:
    done = len(progress.verified)
    grid = Table.grid(padding=(0, 2, 0, 0))
    recent = [v.metrics.get("loss", 0.0) for v in progress.trained[-6:]]
    grid.add_row(
        ProgressBar(total=progress.planned, completed=done, width=30),
        f"{done} of {progress.planned} visits",
        f"loss {fmean(recent):.3f}" if recent else "",
        f"{say_bytes(progress.sealed_bytes)} sealed",
        f"{progress.transfer_s:.2f} s in transfer",
    )
    return grid


def _attacks(progress: Progress) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for attack in progress.attacks:
        verdict = f"REFUSED [{attack.reason}]" if attack.reason else "…"
        grid.add_row(
            Text("attack", style="bold red"),
            f"{attack.holder} {ATTACK_IN_WORDS[attack.name]}",
            Text(verdict, style="bold green"),
        )
    return grid


class Lines:
    """Prints a line when something worth one has happened.

    Args:
        stream: Usually stderr.
        headline: What is told of a visit to held-out rows.
        level: That the demo will show.
    """

    def __init__(self, stream: TextIO, headline: Metric, level: str) -> None:
        self._stream = stream
        self._headline = headline
        self.say(f"{say_loudly(level)}: {say_banner(level)}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Nothing is left open."""

    def say(self, line: str) -> None:
        """Print a line."""
        print(f"sealift: {line}", file=self._stream, flush=True)

    def watch(self, progress: Progress, event: RoleEvent) -> None:
        """Print what this event is worth."""
        visit = progress.visit(event.text("visit"))
        if event.kind == "relay.registered":
            self.say(f"{event.text('name')} has connected")
        elif event.kind == "job.ready":
            self.say(
                f"accelerator ready at level {progress.level}, {progress.keys} keys "
                f"released, sandbox: {progress.sandbox or 'none'}"
            )
        elif event.kind == "round.ended":
            self._round(progress.rounds[-1])
        elif event.kind == "visit.ended" and visit is not None:
            self._visit(progress, visit)
        elif event.kind == "shares.wrong":
            self.say(f"REFUSED [{event.text('code')}]: {event.text('line')}")
        elif event.kind == "checkpoint.missed":
            self.say(
                f"checkpoint {event.text('number')} was not saved: {event.text('line')}"
            )

    def _round(self, seen: RoundSeen) -> None:
        if seen.purpose == "heldout":
            found = self._headline.say(seen.metrics.get(self._headline.name, 0.0))
            self.say(
                f"held-out rows of all owners: {self._headline.title}, {found}, "
                f"after round {seen.epoch + 1}"
            )
        else:
            self.say(
                f"round {seen.epoch + 1}: loss {seen.metrics.get('loss', 0.0):.3f} over "
                f"{seen.rows} rows, {seen.seconds:.2f} s"
            )

    def _visit(self, progress: Progress, visit: VisitSeen) -> None:
        done, headline = len(progress.verified), self._headline
        if not visit.verified:
            self.say(
                f"visit {visit.number} of {visit.holder} REFUSED [{visit.reason}]: "
                f"{visit.line}; revoked, {say_bytes(visit.scrubbed_bytes)} scrubbed"
            )
        elif visit.purpose == "heldout":
            found = headline.say(visit.metrics.get(headline.name, 0.0))
            self.say(
                f"held-out rows of {visit.holder}: {headline.title}, {found}, "
                f"after epoch {visit.epoch + 1}"
            )
        elif done % LINE_EVERY == 0:
            self.say(
                f"{done} of {progress.planned} visits, key epoch {visit.number}, "
                f"loss {visit.metrics.get('loss', 0.0):.3f} at {visit.holder}, "
                f"{say_bytes(progress.sealed_bytes)} sealed, "
                f"{progress.transfer_s:.2f} s in transfer"
            )
