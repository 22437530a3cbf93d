"""Progress on a terminal: who is visited, in which phase, and what has been refused."""

from __future__ import annotations

from statistics import fmean
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sealift.lab.demo.progress import Progress, VisitSeen
from sealift.lab.demo.words import (
    ATTACK_IN_WORDS,
    DEVELOPMENT,
    say_banner,
    say_bytes,
    say_loudly,
)
from sealift.lab.worlds.folder import OWNERS
from sealift.train.eventlines import RoleEvent

PHASES: Final = ("handshake", "load", "train", "scrub", "receipt")  # as dots
COLOUR_OF: Final = dict(zip(OWNERS, ("cyan", "magenta", "yellow"), strict=True))
SPARKS: Final = "▁▂▃▄▅▆▇█"
REFRESHES_PER_S: Final = 10


class Screen:
    """Redraws itself in place.

    Args:
        console: A terminal.
        level: That the demo will show.
    """

    def __init__(self, console: Console, level: str = DEVELOPMENT) -> None:
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

    def __enter__(self) -> Screen:
        self._console.print(banner(self._level))
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
        progress = self._progress
        said = Text("\n".join(self._said), style="dim")
        if progress is None:
            return said
        parts: list[RenderableType] = [
            _roles(progress),
            _parties(progress),
            _bar(progress),
        ]
        if progress.attacks:
            parts.append(_attacks(progress))
        return Group(said, *parts)


def banner(level: str) -> Panel:
    """Nobody is kept out, in red."""
    return Panel(
        Text(say_banner(level)),
        title=say_loudly(level),
        style="bold white on red",
        expand=False,
    )


def _roles(progress: Progress) -> Text:
    up = [name for name in progress.on_relay if name != "orchestrator"]
    text = Text(f"{1 + len(up)} processes up: ", style="dim")
    text.append("orchestrator " + " ".join(up))
    if progress.keys:
        text.append(f"  ·  {progress.keys} data keys released", style="dim")
    return text


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


def _phase(visit: VisitSeen | None) -> Text:
    """Five dots, the phases that were reached filled in."""
    if visit is None:
        return Text("· · · · ·          ", style="dim")
    now = visit.marks[-1][0] if visit.marks else ""
    reached = sum(phase in dict(visit.marks) for phase in PHASES)
    dots = " ".join("●" if index < reached else "·" for index in range(len(PHASES)))
    style = "red" if visit.reason else "green"
    label = "refused" if visit.reason else now
    return Text(f"{dots} {label:<9}", style=style)


def _spark(losses: list[float]) -> str:
    shown = losses[-24:]
    top = max(shown, default=0.0) or 1.0
    return "".join(SPARKS[min(7, int(loss / top * 7.99))] for loss in shown)


def _bar(progress: Progress) -> Table:
    done = len(progress.verified)
    grid = Table.grid(padding=(0, 2, 0, 0))
    recent = [v.metrics.get("loss", 0.0) for v in progress.trained[-6:]]
    loss = f"loss {fmean(recent):.3f}" if recent else ""
    grid.add_row(
        ProgressBar(total=progress.planned, completed=done, width=30),
        f"{done} of {progress.planned} visits",
        loss,
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
