"""The demo from its first second to its last: world, run, checks, report."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Protocol

from sealift.attest.reference import TpmReferences
from sealift.cli.view import view_beside
from sealift.demo.checks import check_rounds, check_run
from sealift.demo.folder import OWNERS, World, claimed, remove_secrets
from sealift.demo.job import Travel, make_world, second_act
from sealift.demo.outcome import BOUND_S, Outcome, Revocation, Verdict
from sealift.demo.report.page import write_report
from sealift.demo.roles import HOSTILE, DemoRun, run_ddp, run_local, run_travel
from sealift.demo.tasks import TASKS
from sealift.demo.tasks.task import Sample, Task
from sealift.demo.views import View
from sealift.train.job.settings import read_job
from sealift.train.job.signals import on_second_signal
from sealift.travel.visit.state import Clock


class RehearsedHost(Protocol):
    """An attested host that boots, attests, and misbehaves in the second act."""

    @property
    def place(self) -> str:
        """What ``sealift accelerator --agent`` is told."""

    def references(self) -> TpmReferences:
        """The values that its evidence is compared with."""

    def run_second_act(self, world: World, clock: Clock) -> Revocation:
        """Misbehave while rows of another job flow; what that led to."""

    def kill(self) -> None:
        """Switch it off at once."""


HostMaker = Callable[[Callable[[str], None]], AbstractContextManager[RehearsedHost]]


def run_demo(
    args: argparse.Namespace,
    view: View,
    make_host: HostMaker | None = None,
    *,
    clock: Clock,
) -> Outcome:
    """Run the demo.

    Args:
        args: Of the command line.
        view: Where progress goes.
        make_host: Starts the attested host that is rehearsed, and tells people what
            takes its time.
        clock: Monotonic seconds, the same as in the roles' events.

    Raises:
        SealiftError: if the world cannot be made or a process failed.
    """
    folder: Path = args.output.resolve()
    with claimed(folder):
        try:
            outcome = _run(args, folder, view, make_host, clock)
        finally:
            if not args.keep:
                remove_secrets(folder)
        write_report(outcome)
        return outcome


def _run(
    args: argparse.Namespace,
    folder: Path,
    view: View,
    make_host: HostMaker | None,
    clock: Clock,
) -> Outcome:
    began_s, task = clock(), TASKS[args.task]
    travel, revocation, host = Travel(args.buffers, args.mixed), None, None
    with ExitStack() as stack:
        stack.enter_context(view)
        if make_host is not None:
            host = stack.enter_context(make_host(view.say))
            on_second_signal(host.kill)
        rows = task.words.rows
        view.say(
            f"creating keys, sealing the {rows} of three owners, signing the agreement"
        )
        values = host.references if host else None
        world = make_world(folder, task, travel, values, args.plan)
        world_s = clock() - began_s
        job = read_job(world.job).name
        stack.enter_context(view_beside(folder, job, wanted=args.view))
        if args.plan == "local":
            view.say("training in one process")
            run, verdict = run_local(world), Verdict()
        elif args.plan == "ddp":
            view.say(
                "starting seven processes: orchestrator, three brokers, three accelerators"
            )
            run = run_ddp(world, view.watch)
            view.say("verifying logs, receipts, scrub reports and the model")
            verdict = check_rounds(world, run, now=_now)
        else:
            count = "eleven" if args.plan == "outsource" else "eight"
            view.say(f"starting {count} processes")
            run = _run_travel(world, view, host)
            view.say("verifying logs, receipts, scrub reports and the model")
            verdict = check_run(world, run, now=_now)
        if host is not None:
            view.say("running a second job, in which the host misbehaves")
            revocation = _stop_it(second_act(world), host, verdict, clock)
        sample = _sample(world, task)
    metrics, named = run.result["metrics"], task.metric_names
    return Outcome(
        task=task,
        travel=travel,
        plan=args.plan,
        level=run.result["level"],
        together={name: metrics[name] for name in named},
        alone={
            owner: {name: metrics[f"alone.{owner}.{name}"] for name in named}
            for owner in (OWNERS if args.plan in ("travel", "local") else ())
        },
        weights=run.result["weights"],
        progress=run.progress,
        verdict=verdict,
        world=world,
        world_s=world_s,
        roles_up_s=max(0.0, run.progress.gathered_s - began_s),
        seconds=clock() - began_s,
        sample=sample,
        revocation=revocation,
    )


def _run_travel(world: World, view: View, host: RehearsedHost | None) -> DemoRun:
    behaviour = {} if world.servers else HOSTILE
    place = host.place if host else ""
    return run_travel(world, view.watch, agent=place, behaviour=behaviour)


def _stop_it(
    world: World, host: RehearsedHost, verdict: Verdict, clock: Clock
) -> Revocation:
    """The second act: a host that attests can misbehave."""
    found = host.run_second_act(world, clock)
    if not found.held:
        verdict.failures.append(
            f"after the host misbehaved, rows were sent for {found.last_byte_s:.2f} s (at "
            f"most {BOUND_S:g} s are allowed); revoked for {found.rules or 'nothing'}"
        )
    return found


def _sample(world: World, task: Task) -> Sample | None:
    """What the model writes for its owner, if it was opened and can write."""
    if task.make_sample is None or not world.model.is_file():
        return None
    return task.make_sample(world.bundle, world.model)


def _now() -> float:
    return time.time()  # noqa: TID251 - the demo checks what it made now
