"""A run whose roles are killed one after the other, each at once started again.

A kill is due when the roles have told so many more events, which spreads the kills over
handshakes, releases, visits, checkpoints and the end alike; a short pause, drawn as
well, puts them between events.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random  # noqa: TID251 - draws a test's plan, from a seed it prints
from typing import Any

from sealift.demo.folder import World
from tests.sim.jobrun import JobRun, Running, job_run

OWNERS = ("north", "east")
ROLES = (
    "accelerator", "orchestrator", *(f"{role}-{owner}" for role in ("holder", "broker")
    for owner in OWNERS),
)  # fmt: skip
RUN_S = 500.0


@dataclass(frozen=True)
class Kill:
    """Who, after how many more events, and how much later."""

    victim: str
    events: int
    pause_s: float


def draw_kills(seed: int, count: int, *, spacing: int) -> list[Kill]:
    """A plan; the same for the same seed."""
    draw = Random(seed)
    return [
        Kill(draw.choice(ROLES), draw.randrange(1, 2 * spacing), draw.random() * 0.1)
        for _ in range(count)
    ]


@dataclass
class Survived:
    """What became of a run."""

    result: dict[str, Any]
    kills: list[tuple[Kill, str]]  # and what the roles had told last

    def __str__(self) -> str:
        return "\n".join(f"{kill} after {last}" for kill, last in self.kills)


def run_with_kills(world: World, kills: Sequence[Kill]) -> Survived:
    """Run a job; kill and start again by plan; how it ended."""
    with job_run(world) as run:
        return _Killing(run).survive(kills)


class _Killing:
    def __init__(self, run: JobRun) -> None:
        self.run = run
        self.former: list[Running] = []
        self.deadline = time.monotonic() + RUN_S

    def survive(self, kills: Sequence[Kill]) -> Survived:
        self.run.everybody(*OWNERS)
        done: list[tuple[Kill, str]] = []
        for kill in kills:
            if not self._await_events(kill.events):
                break
            time.sleep(kill.pause_s)
            done.append((kill, self._last_told()))
            self._kill(kill.victim)
        orchestrator = self.run["orchestrator"]
        code = orchestrator.end(max(1.0, self.deadline - time.monotonic()))
        told = "\n".join(self._complaints())
        assert code == 0, f"{done}\n{told}"
        return Survived(orchestrator.results[-1], done)

    def _await_events(self, more: int) -> bool:
        """Whether so many more events came before the run ended."""
        target = self._count() + more
        while self._count() < target:
            assert time.monotonic() < self.deadline, "\n".join(self._complaints())
            if self.run["orchestrator"].process.poll() is not None:
                return False
            time.sleep(0.002)
        return True

    def _kill(self, victim: str) -> None:
        role = self.run[victim]
        role.signal(signal.SIGKILL)
        role.end()
        self.former.append(role)
        party = victim.partition("-")[2]
        if victim == "orchestrator":
            self.run.orchestrator("--orchestrator", self.run.address)
        elif victim == "accelerator":
            self.run.accelerator()
        elif victim.startswith("broker"):
            self.run.broker(party)
        else:
            self.run.holder(party, with_broker=False)

    def _everybody(self) -> Iterator[Running]:
        yield from self.former
        yield from self.run.roles.values()

    def _count(self) -> int:
        return sum(len(role.events) for role in self._everybody())

    def _last_told(self) -> str:
        events = [event for role in self._everybody() for event in role.events[-1:]]
        last = max(events, key=lambda event: event.t_s, default=None)
        return f"{last.process}: {last.kind}" if last else "nothing"

    def _complaints(self) -> Iterator[str]:
        for role in self._everybody():
            yield f"{role.name} {role.process.poll()}: {role.errors[-3:]}"
            yield f"    {[event.kind for event in role.events[-6:]]}"
