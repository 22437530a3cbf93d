"""The demo from its first second to its last: world, run, checks, report.

What of a demo verifies: by its owner, from what the parties kept.

Nothing here believes the processes that ran: the parties' files are verified with the
agreement alone, as a court would.
"""

from __future__ import annotations

import argparse
import math
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from sealift.attest.reference import TpmReferences
from sealift.cli.view import view_beside
from sealift.crypto.identity import load_identity
from sealift.crypto.sign import PublicKey
from sealift.data.schedule.visits import VisitBatch, plan_here
from sealift.demo import cheating, holders
from sealift.demo.folder import (
    HOST,
    MODEL_OWNER,
    OPERATOR,
    OWNERS,
    Words,
    World,
    claimed,
    remove_secrets,
)
from sealift.demo.job import NOWHERE, Travel, make_world, second_act
from sealift.demo.outcome import (
    BOUND_S,
    REFUSAL_OF,
    CheckedLog,
    DemoVerdict,
    Outcome,
    Revocation,
)
from sealift.demo.progress import Progress
from sealift.demo.report import write_report
from sealift.demo.tasks import TASKS, Sample, ShownTask
from sealift.demo.views import View
from sealift.errors import IntegrityError, JobError, SealiftError, require_value
from sealift.release.agreement.signed import VerifiedAgreement, load_verified
from sealift.release.equip import equip
from sealift.release.files import write_whole
from sealift.release.log.entries import SignedTreeHead
from sealift.release.log.heads import find_head, read_entries, verify_log
from sealift.release.receipt import ReceiptVerifier, read_receipts, receipts_in
from sealift.train.job.roleprocesses import (
    Ended,
    ProcessMessage,
    RoleEvent,
    RoleProcesses,
    RoleResult,
)
from sealift.train.job.settings import read_job
from sealift.train.job.signals import followed, on_second_signal, stop_postponed
from sealift.train.loop.slices import plan_slice
from sealift.travel.visit.memory import ALLOCATOR_ENVIRONMENT
from sealift.travel.visit.state import Clock


def _check_run(world: World, run: DemoRun, *, now: Callable[[], float]) -> DemoVerdict:
    """Check everything that the parties keep of a run; failures are collected.

    Args:
        world: Made by ``make_world``.
        run: What was told of it.
        now: Seconds since 1970, to judge certificates at.
    """
    verified = equip(load_verified(world.agreement), clock=now)
    verdict = DemoVerdict(agreement=verified.agreement)
    tries = cheating.TRIES if world.servers else holders.TRIES
    visits = {visit.visit for visit in run.progress.verified}
    return _checked(
        verdict,
        {
            "attacks": lambda: _check_attacks(run.progress, tries),
            "wrong answers": lambda: _check_wrong(verified, run.progress, verdict),
            "logs": lambda: _check_logs(world, verified, verdict),
            "receipts": lambda: _check_receipts(world, verified, verdict, visits),
            "model": lambda: _check_model(world, verified, verdict, run),
        },
    )


def check_rounds(
    world: World, run: DemoRun, *, now: Callable[[], float]
) -> DemoVerdict:
    """The same of a run whose ranks were the owners' own; the manifest shows all heads."""
    verified = equip(load_verified(world.agreement), clock=now)
    verdict = DemoVerdict(agreement=verified.agreement)
    return _checked(
        verdict,
        {
            "model": lambda: _check_model(world, verified, verdict, run),
            "logs": lambda: _check_shown_logs(world, verified, verdict),
            "receipts": lambda: _check_uses(world, verified, verdict),
        },
    )


def _checked(
    verdict: DemoVerdict, checks: Mapping[str, Callable[[], None]]
) -> DemoVerdict:
    for name, check in checks.items():
        try:
            check()
        except SealiftError as error:
            verdict.failures.append(f"{name}: {error}")
    return verdict


def _check_attacks(progress: Progress, tries: tuple[str, ...]) -> None:
    found = {attack.name: attack.reason for attack in progress.attacks}
    for name in tries:
        expected = REFUSAL_OF[name]
        if found.get(name) != expected:
            raise IntegrityError(
                f"the attack {name} was not refused for the expected reason",
                why=f"expected {expected}, found {found.get(name) or 'nothing'}",
                code="attack-succeeded",
            )


def _check_wrong(
    verified: VerifiedAgreement, progress: Progress, verdict: DemoVerdict
) -> None:
    """Of each wrong answer a record is kept, with its server's own signature."""
    from sealift.train.job.shareservers import WrongRecord

    wrong = [each for each in progress.attacks if each.name in cheating.TRIES]
    for attack in wrong:
        record = WrongRecord.load(Path(attack.kept))
        (signed,) = record.signed
        signed.verify(verified.party(attack.holder).sign)
        verdict.wrong_answers += signed.body.step == record.wrong.step
    if verdict.wrong_answers != len(wrong):
        raise IntegrityError(
            "records of wrong products do not fit what servers signed",
            why=f"{verdict.wrong_answers} of {len(wrong)} records fit",
            code="wrong-product",
        )
    verdict.wrong_verified = bool(wrong)


def _check_logs(
    world: World, verified: VerifiedAgreement, verdict: DemoVerdict
) -> None:
    """Each owner's log continues the heads that the other owners kept."""
    for owner in OWNERS:
        path, key = world.home(owner).log, verified.party(owner).sign
        others = tuple(name for name in OWNERS if name != owner)
        heads = [find_head(world.home(other).heads, key) for other in others]
        verdict.logs.append(
            _check_log(owner, key, path, dict(zip(others, heads, strict=True)))
        )
    verdict.log_verified = True


def _check_shown_logs(
    world: World, verified: VerifiedAgreement, verdict: DemoVerdict
) -> None:
    """Each owner's log continues the head in the manifest, and shows the release to its rank."""
    from sealift.train.output.manifest import head_of, prove_releases

    manifest = require_value(verdict.manifest, "the model was opened")
    for owner in OWNERS:
        path, key = world.home(owner).log, verified.party(owner).sign
        head = head_of(manifest, key)
        log = _check_log(owner, key, path, {"the manifest": head})
        prove_releases(manifest, log.entries)
        verdict.logs.append(log)
    verdict.log_verified = True


def _check_log(
    owner: str, key: PublicKey, path: Path, heads: Mapping[str, SignedTreeHead | None]
) -> CheckedLog:
    """A log that continues every head that others kept of it."""
    report = verify_log(path, *filter(None, heads.values()))
    if report.owner != key:
        raise IntegrityError(
            f"{owner}'s log was signed with another key", code="other-log"
        )
    return CheckedLog(
        owner=owner,
        size=report.size,
        releases=report.releases,
        refusals=report.refusals,
        root=report.root.to_text(),
        kept_by=tuple(heads),
        entries=tuple(read_entries(path)),
    )


def _check_receipts(
    world: World, verified: VerifiedAgreement, verdict: DemoVerdict, visits: set[str]
) -> None:
    """One for each visit."""
    _read_receipts(world, verified, verdict)
    kept = {receipt.visit.to_text() for receipt in verdict.receipts}
    if kept != visits:
        raise _receipts_missing(len(kept), len(visits), "visits")
    verdict.receipts_verified = True


def _check_uses(
    world: World, verified: VerifiedAgreement, verdict: DemoVerdict
) -> None:
    """One for each use of rows that the ranks' slices have by agreement and job."""
    _read_receipts(world, verified, verdict)
    agreement, settings = verified.agreement, read_job(world.job).settings
    plans = (plan_slice(agreement, settings, n) for n in range(settings.slices.count))
    stops = [stop for plan in plans for group in plan for stop in group.stops]
    kept = Counter(
        (e.resource, e.purpose, e.first_row, e.rows) for e in verdict.receipts
    )
    if kept != Counter((s.resource, s.purpose, s.first_row, s.rows) for s in stops):
        raise _receipts_missing(kept.total(), len(stops), "uses of rows")
    verdict.receipts_verified = True


def _read_receipts(
    world: World, verified: VerifiedAgreement, verdict: DemoVerdict
) -> None:
    verifier = ReceiptVerifier(verified)
    for owner in OWNERS:
        for path in receipts_in(world.home(owner).receipts):
            for signed, _end in read_receipts(path):
                verdict.receipts.append(verifier.verify(signed))
    # It refuses a receipt whose scrub left anything.
    verdict.scrub_verified = all(receipt.scrub.verified for receipt in verdict.receipts)


def _receipts_missing(kept: int, wanted: int, of: str) -> IntegrityError:
    return IntegrityError(
        f"there is not one receipt for each of the {of}",
        why=f"{kept} receipts, {wanted} {of}",
        code="receipts-missing",
    )


def _check_model(
    world: World, verified: VerifiedAgreement, verdict: DemoVerdict, run: DemoRun
) -> None:
    """Opened by its owner, with the passphrase that only a demo leaves beside the key."""
    from sealift.train.output.opening import open_output  # torch
    from sealift.train.output.sealing import MODEL_NAME

    home = world.home(MODEL_OWNER)
    identity = load_identity(home.key, home.passphrase.read_text("utf-8").strip())
    opened = open_output(world.run, identity, verified)
    if opened.weights.to_text() != run.result["weights"]:
        what = "the model's weights are not those that the orchestrator reported"
        raise IntegrityError(what, code="weights-differ")
    write_whole(world.model, opened.content)
    verdict.parameters, verdict.manifest = opened.parameters, opened.manifest
    verdict.model_bytes = (world.run / MODEL_NAME).stat().st_size
    verdict.model_verified = True


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
            run, verdict = run_local(world), DemoVerdict()
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
            verdict = _check_run(world, run, now=_now)
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
    world: World, host: RehearsedHost, verdict: DemoVerdict, clock: Clock
) -> Revocation:
    """The second act: a host that attests can misbehave."""
    found = host.run_second_act(world, clock)
    if not found.held:
        verdict.failures.append(
            f"after the host misbehaved, rows were sent for {found.last_byte_s:.2f} s (at "
            f"most {BOUND_S:g} s are allowed); revoked for {found.rules or 'nothing'}"
        )
    return found


def _sample(world: World, task: ShownTask) -> Sample | None:
    """What the model writes for its owner, if it was opened and can write."""
    if task.make_sample is None or not world.model.is_file():
        return None
    return task.make_sample(world.bundle, world.model)


def _now() -> float:
    return time.time()  # noqa: TID251 - the demo checks what it made now


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
