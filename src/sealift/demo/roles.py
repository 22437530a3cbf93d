"""A job's processes: what everybody would type, followed until the job has ended."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from sealift.data.schedule.visits import VisitBatch, plan_here
from sealift.demo import cheating, holders
from sealift.demo.folder import HOST, OPERATOR, OWNERS, Words, World
from sealift.demo.job import NOWHERE
from sealift.demo.progress import Progress
from sealift.errors import JobError
from sealift.release.agreement.signed import load_verified
from sealift.train.job.roleprocesses import (
    Ended,
    ProcessMessage,
    RoleEvent,
    RoleProcesses,
    RoleResult,
)
from sealift.train.job.settings import read_job
from sealift.train.job.signals import followed, on_second_signal, stop_postponed
from sealift.travel.visit.memory import ALLOCATOR_ENVIRONMENT

SILENCE_S: Final = 180.0  # a busy machine starts eleven processes in a minute
ALONE_S: Final = 600.0  # a local run tells nothing until it has ended
GRACE_S: Final = 1.0  # all end when the orchestrator does; who ends first is a race
HOSTILE: Final = {"south": "hostile"}  # attacks first, then behaves
CHEATS: Final = "M"  # half way, where servers multiply
SLOW: Final = dict.fromkeys(OWNERS, "slow")
_EVENTS: Final = ("--events", "-")
Watch = Callable[[Progress, RoleEvent], None]


@dataclass(frozen=True, slots=True)
class DemoRun:
    """A finished run.

    Attributes:
        progress: Everything that was told.
        result: The summary of whoever ran the job.
    """

    progress: Progress
    result: Mapping[str, Any]


def run_travel(
    world: World,
    watch: Watch,
    *,
    agent: str = "",
    behaviour: Mapping[str, str] = HOSTILE,
) -> DemoRun:
    """Start every role, watch until the job has ended, end every role.

    Args:
        world: Made by ``make_world``.
        watch: Called in this thread with every event, after it was taken note of.
        agent: What attests for the accelerator's host; empty for a software key.
        behaviour: What holders are up to (``worlds.holders``), by owner.

    Raises:
        SealiftError: if a process failed; its line and exit code.
    """
    progress = Progress(_count_visits(world))
    result: Mapping[str, Any] = {}
    with started(world, behaviour, agent) as (processes, told):
        for each in told:
            if isinstance(each, RoleEvent):
                progress.take(each)
                watch(progress, each)
            elif isinstance(each, RoleResult):
                result = each.content if each.process == "orchestrator" else result
            elif each.process == "orchestrator":
                break
            elif not processes.ends_within("orchestrator", GRACE_S):
                processes.require_success(each.process)
        # Accelerator and holders end by themselves once the job has; brokers serve on.
        for name in ("orchestrator", "accelerator", *map(_holder, world.owners)):
            processes.require_success(name)
    if not result:
        raise JobError("the orchestrator gave no result", code="role-ended")
    return DemoRun(progress, result)


def run_ddp(world: World, watch: Watch) -> DemoRun:
    """Start orchestrator, and a broker and a rank for each owner; until all have ended.

    Raises:
        SealiftError: if a process failed; its line and exit code.
    """
    progress, result = Progress(0), dict[str, Any]()
    with _processes(world) as processes:
        with stop_postponed():
            words = ["orchestrator", world.job, *world.home(OPERATOR).unlocking]
            processes.start("orchestrator", "sealift", [*words, *_EVENTS])
        for each in processes.listen(SILENCE_S):
            if isinstance(each, RoleEvent):
                if each.kind == "orchestrator.listening":
                    _start_ranks(processes, world, each.fields["port"])
                progress.take(each)
                watch(progress, each)
            elif isinstance(each, RoleResult):
                result = (
                    dict(each.content) if each.process == "orchestrator" else result
                )
            elif each.process == "orchestrator":
                break
            elif not processes.ends_within("orchestrator", GRACE_S):
                processes.require_success(each.process)
        for name in ("orchestrator", *map(_rank, world.owners)):
            processes.require_success(name)
    if not result:
        raise JobError("the orchestrator gave no result", code="role-ended")
    return DemoRun(progress, result)


def _start_ranks(processes: RoleProcesses, world: World, port: object) -> None:
    dial = ["--orchestrator", f"127.0.0.1:{port}", *_EVENTS]
    with stop_postponed():
        for owner in world.owners:
            home = world.home(owner)
            words: Words = ["accelerator", world.job, *home.unlocking, *dial]
            words += ["--sealed", home.sealed, "--receipts", home.receipts]
            words += ["--state", home.path / "state"]
            processes.start(_rank(owner), "sealift", words, ALLOCATOR_ENVIRONMENT)
            words = ["broker", world.job, *home.unlocking, *home.stores, *dial]
            processes.start(f"broker-{owner}", "sealift", words)


def _rank(owner: str) -> str:
    return f"rank-{owner}"


def run_local(world: World) -> DemoRun:
    """``sealift train`` with the plan ``local``, and everybody's keys.

    Raises:
        SealiftError: what it said last, with its exit code.
    """
    words: Words = ["train", world.job, "--json"]
    for home in map(world.home, world.owners):
        words += [*home.unlocking, "--vault", home.vault, "--sealed", home.sealed]
    result: Mapping[str, Any] = {}
    with _processes(world) as processes:
        with stop_postponed():
            processes.start("train", "sealift", words)
        for each in processes.listen(ALONE_S):
            if isinstance(each, RoleResult):
                result = each.content
            elif isinstance(each, Ended):
                processes.require_success(each.process)
                break
    shutil.copyfile(world.run / "model.safetensors", world.model)
    return DemoRun(Progress(_count_visits(world)), result)


@contextmanager
def started(
    world: World, behaviour: Mapping[str, str], agent: str
) -> Iterator[tuple[RoleProcesses, Iterator[ProcessMessage]]]:
    """All roles of a job, started one after another, and what they tell.

    Args:
        world: Made by ``make_world``.
        behaviour: What holders are up to (``worlds.holders``), by owner.
        agent: What attests for the accelerator's host; empty for a software key.
    """
    with _processes(world) as processes:
        with stop_postponed():
            if world.servers:
                _start_server(processes, world, next(iter(world.servers)))
            else:
                _start_orchestrator(processes, world)
        yield processes, _told(processes, world, behaviour, agent)


@contextmanager
def _processes(world: World) -> Iterator[RoleProcesses]:
    """Every process ends with this one, however that ends."""
    with RoleProcesses(world.path, followed()) as processes:
        on_second_signal(processes.kill, ends_children=True)
        yield processes


def _told(
    processes: RoleProcesses, world: World, behaviour: Mapping[str, str], agent: str
) -> Iterator[ProcessMessage]:
    for each in processes.listen(SILENCE_S):
        if isinstance(each, RoleEvent) and each.kind == "shares.listening":
            with stop_postponed():
                _server_listens(processes, world, each)
        if isinstance(each, RoleEvent) and each.kind == "orchestrator.listening":
            dial = ["--orchestrator", f"127.0.0.1:{each.fields['port']}", *_EVENTS]
            with stop_postponed():
                _start_accelerator(processes, world, dial, agent)
                for owner in world.owners:
                    _start_owner(processes, world, owner, dial, behaviour.get(owner))
        yield each


def _start_orchestrator(processes: RoleProcesses, world: World) -> None:
    words: Words = ["orchestrator", world.job, *world.home(OPERATOR).unlocking]
    processes.start("orchestrator", "sealift", [*words, *_EVENTS])


def _start_server(processes: RoleProcesses, world: World, share: str) -> None:
    """One of them cheats half way; the first one compiles for all."""
    party = world.servers[share]
    words: Words = ["--share", share, world.job, *world.home(party).unlocking]
    words += ["--kernels", world.kernels, *_EVENTS]
    if share == CHEATS:
        first = str(_count_steps(world) // 2)
        processes.start(f"server-{party}", cheating.MODULE, [first, *words])
    else:
        processes.start(f"server-{party}", "sealift", ["share-server", *words])


def _server_listens(processes: RoleProcesses, world: World, event: RoleEvent) -> None:
    """Where it does goes into the job, which the rest reads once it is whole."""
    share, job = event.text("share"), world.job.read_text("utf-8")
    place = f'{share} = "{event.text("address")}"\n'
    job = job.replace(f'{share} = "{NOWHERE}"\n', place)
    world.job.write_text(job, "utf-8")
    first, *others = world.servers
    if share == first:
        for each in others:
            _start_server(processes, world, each)
    if NOWHERE not in job.partition("[servers]")[2]:
        _start_orchestrator(processes, world)


def _start_accelerator(
    processes: RoleProcesses, world: World, dial: list[str], agent: str
) -> None:
    """The first of those who dial, since torch takes its time."""
    words = ["accelerator", world.job, *world.home(HOST).unlocking, *dial]
    words += ["--agent", agent] if agent else []
    # It would restart itself with this environment; started with it, it need not.
    processes.start("accelerator", "sealift", words, ALLOCATOR_ENVIRONMENT)


def _start_owner(
    processes: RoleProcesses,
    world: World,
    owner: str,
    dial: list[str],
    behaviour: str | None,
) -> None:
    home = world.home(owner)
    words = [world.job, *home.unlocking, *home.stores, *dial]
    processes.start(f"broker-{owner}", "sealift", ["broker", *words])
    words += home.cargo
    if behaviour is None:
        processes.start(_holder(owner), "sealift", ["join", "--holder-only", *words])
    else:
        processes.start(_holder(owner), holders.MODULE, [behaviour, *words])


def _holder(owner: str) -> str:
    return f"holder-{owner}"


def _count_visits(world: World) -> int:
    """Visits that the schedule asks for."""
    return sum(len(group.stops) for group in _plan(world))


def _count_steps(world: World) -> int:
    """Training steps that it asks for."""
    batch = read_job(world.job).settings.training.batch_rows
    rows = (
        sum(stop.rows for stop in group.stops)
        for group in _plan(world)
        if group.stops[0].purpose == "train"
    )
    return sum(math.ceil(each / batch) for each in rows)


def _plan(world: World) -> Sequence[VisitBatch]:
    agreement = load_verified(world.agreement).agreement
    return plan_here(agreement.resources, read_job(world.job).settings.visits)
