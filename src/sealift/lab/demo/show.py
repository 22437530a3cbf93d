"""The demo from its first second to its last: world, run, checks, report."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol

from sealift.lab.demo.checks import check_run
from sealift.lab.demo.outcome import Outcome, Plan, Verdict
from sealift.lab.demo.progress import Progress
from sealift.lab.demo.rehearsedhost import RehearsedHost
from sealift.lab.demo.report.page import write_report
from sealift.lab.demo.secondact import BOUND_S, Revocation, run_second_act
from sealift.lab.demo.tasks.digits import DIGITS
from sealift.lab.demo.tasks.task import Sample, Task
from sealift.lab.demo.travelrun import NO_STOPS, Stops, TravelRun, run_travel
from sealift.lab.demo.world import ONE_BUFFER, Travel, make_world, second_act
from sealift.lab.worlds.claimed import claimed, remove_secrets
from sealift.lab.worlds.folder import OWNERS, World
from sealift.train.eventlines import RoleEvent
from sealift.travel.state import Clock


class View(AbstractContextManager["View"], Protocol):
    """Where progress goes."""

    def say(self, line: str) -> None:
        """Tell people what begins now."""
        ...

    def watch(self, progress: Progress, event: RoleEvent) -> None:
        """Show the state after an event."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the command line asks for.

    Attributes:
        folder: Gets everything.
        task: What the parties learn together.
        travel: One buffer or two, mixed cargo or not.
        attacks: Let one holder attack first.
        rehearse: Have a guest attest as an attested host would, and misbehave at last.
        keep: Leave keys, passphrases and sealed data where they are.
    """

    folder: Path
    plan: Plan = "travel"
    task: Task = DIGITS
    travel: Travel = ONE_BUFFER
    attacks: bool = True
    rehearse: bool = False
    keep: bool = False


def run_demo(
    wishes: Wishes,
    view: View,
    *,
    clock: Clock,
    stops: Stops = NO_STOPS,
) -> Outcome:
    """Run the demo.

    Args:
        wishes: What is asked for.
        view: Where progress goes.
        clock: Monotonic seconds, the same as in the roles' events.
        stops: How this process is stopped.

    Raises:
        SealiftError: if the world cannot be made or a process failed.
    """
    with claimed(wishes.folder):
        try:
            return _show(wishes, view, clock, stops)
        finally:
            if not wishes.keep:
                remove_secrets(wishes.folder)


def _show(wishes: Wishes, view: View, clock: Clock, stops: Stops) -> Outcome:
    began_s = clock()
    with view, _host(wishes, view, stops) as host:
        rows = wishes.task.words.rows
        view.say(f"making keys, sealing three owners' {rows}, signing the agreement")
        values = host.references if host else None
        world = make_world(wishes.folder, wishes.task, wishes.travel, values)
        world_s = clock() - began_s
        if wishes.plan == "local":
            run, verdict = _run_local(world, view, clock)
        else:
            run = _run_travel(world, view, wishes, stops, host.place if host else "")
            view.say("verifying logs, receipts, scrub reports and the model")
            verdict = check_run(world, run, attacks=wishes.attacks, now=_now)
        revocation = _stop_it(world, host, verdict, view, clock=clock, stops=stops)
        sample = _sample(world, wishes.task)
    outcome = _outcome(world, run, verdict, wishes)
    outcome.sample, outcome.revocation = sample, revocation
    outcome.world_s, outcome.began_s = world_s, began_s
    outcome.roles_up_s = run.progress.gathered_s - began_s
    outcome.seconds = clock() - began_s
    write_report(outcome)
    return outcome


def _host(
    wishes: Wishes, view: View, stops: Stops
) -> AbstractContextManager[RehearsedHost | None]:
    if not wishes.rehearse:
        return nullcontext()
    host = RehearsedHost(view.say)
    stops.on_second_signal(host.kill)
    return host


def _stop_it(
    world: World,
    host: RehearsedHost | None,
    verdict: Verdict,
    view: View,
    *,
    clock: Clock,
    stops: Stops,
) -> Revocation | None:
    """The second act, where a host attests that can misbehave."""
    if host is None:
        return None
    view.say("second act: the host will misbehave while rows flow")
    again = second_act(world)
    found = run_second_act(again, host.place, host.misbehave, clock=clock, stops=stops)
    if not found.held:
        verdict.failures.append(
            f"revocation: {found.last_byte_s:.2f} s until the last byte (bar {BOUND_S:g} "
            f"s), revoked for {found.rules or 'nothing'}"
        )
    return found


def _now() -> float:
    return time.time()  # noqa: TID251 - the demo checks what it made now


def _run_travel(
    world: World, view: View, wishes: Wishes, stops: Stops, agent: str
) -> TravelRun:
    view.say("starting eight processes")
    # The model is opened at the end; torch loads meanwhile, on the second core.
    warm = _Once(lambda: import_module("sealift.train.handover"))

    def watch(progress: Progress, event: RoleEvent) -> None:
        if event.kind == "job.ready":
            warm.start()
        view.watch(progress, event)

    return run_travel(world, watch, attacks=wishes.attacks, agent=agent, stops=stops)


def _run_local(world: World, view: View, clock: Clock) -> tuple[TravelRun, Verdict]:
    from sealift.lab.demo.localrun import run_alone  # torch

    view.say("training in this process alone")
    return run_alone(world, view.watch, clock=clock), Verdict()


def _sample(world: World, task: Task) -> Sample | None:
    """What the model writes for its owner, if it was opened and can write."""
    if task.make_sample is None or not world.model.is_file():
        return None
    return task.make_sample(world.bundle, world.model)


def _outcome(world: World, run: TravelRun, verdict: Verdict, wishes: Wishes) -> Outcome:
    metrics, named = run.result["metrics"], wishes.task.metric_names
    return Outcome(
        task=wishes.task,
        travel=wishes.travel,
        plan=wishes.plan,
        level=run.result.get("level", "development"),
        together={name: metrics[name] for name in named},
        alone={
            owner: {name: metrics[f"alone.{owner}.{name}"] for name in named}
            for owner in OWNERS
        },
        weights=run.result["weights"],
        progress=run.progress,
        verdict=verdict,
        world_s=0.0,
        roles_up_s=0.0,
        seconds=0.0,
        began_s=0.0,
        folder=world.path,
        report=world.report,
        model=world.model,
    )


class _Once:
    """Runs something in a thread of its own, the first time it is asked to."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._thread = threading.Thread(target=call, daemon=True)
        self._started = False

    def start(self) -> None:
        if not self._started:
            self._started = True
            self._thread.start()
