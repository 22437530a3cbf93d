"""The demo from its first second to its last: world, run, checks, report.

What of a demo verifies: by its owner, from what the parties kept.

Nothing here believes the processes that ran: the parties' files are verified with the
agreement alone, as a court would.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Protocol

from sealift.attest.reference import TpmReferences
from sealift.cli.view import view_beside
from sealift.crypto.identity import load_identity
from sealift.crypto.sign import PublicKey
from sealift.demo import cheating, holders
from sealift.demo.folder import MODEL_OWNER, OWNERS, World, claimed, remove_secrets
from sealift.demo.job import Travel, make_world, second_act
from sealift.demo.outcome import (
    BOUND_S,
    REFUSAL_OF,
    CheckedLog,
    Outcome,
    Revocation,
    Verdict,
)
from sealift.demo.progress import Progress
from sealift.demo.report.page import write_report
from sealift.demo.roles import HOSTILE, DemoRun, run_ddp, run_local, run_travel
from sealift.demo.tasks import TASKS
from sealift.demo.tasks.task import Sample, Task
from sealift.demo.views import View
from sealift.errors import IntegrityError, SealiftError, require_value
from sealift.release.agreement.signed import VerifiedAgreement, load_verified
from sealift.release.equip import equip
from sealift.release.files import write_whole
from sealift.release.log.entries import SignedTreeHead
from sealift.release.log.heads import find_head, read_entries, verify_log
from sealift.release.receipt import ReceiptVerifier, read_receipts, receipts_in
from sealift.train.job.settings import read_job
from sealift.train.job.signals import on_second_signal
from sealift.train.loop.slices import plan_slice
from sealift.travel.visit.state import Clock


def _check_run(world: World, run: DemoRun, *, now: Callable[[], float]) -> Verdict:
    """Check everything that the parties keep of a run; failures are collected.

    Args:
        world: Made by ``make_world``.
        run: What was told of it.
        now: Seconds since 1970, to judge certificates at.
    """
    verified = equip(load_verified(world.agreement), clock=now)
    verdict = Verdict(agreement=verified.agreement)
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


def check_rounds(world: World, run: DemoRun, *, now: Callable[[], float]) -> Verdict:
    """The same of a run whose ranks were the owners' own; the manifest shows all heads."""
    verified = equip(load_verified(world.agreement), clock=now)
    verdict = Verdict(agreement=verified.agreement)
    return _checked(
        verdict,
        {
            "model": lambda: _check_model(world, verified, verdict, run),
            "logs": lambda: _check_shown_logs(world, verified, verdict),
            "receipts": lambda: _check_uses(world, verified, verdict),
        },
    )


def _checked(verdict: Verdict, checks: Mapping[str, Callable[[], None]]) -> Verdict:
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
    verified: VerifiedAgreement, progress: Progress, verdict: Verdict
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


def _check_logs(world: World, verified: VerifiedAgreement, verdict: Verdict) -> None:
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
    world: World, verified: VerifiedAgreement, verdict: Verdict
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
    world: World, verified: VerifiedAgreement, verdict: Verdict, visits: set[str]
) -> None:
    """One for each visit."""
    _read_receipts(world, verified, verdict)
    kept = {receipt.visit.to_text() for receipt in verdict.receipts}
    if kept != visits:
        raise _receipts_missing(len(kept), len(visits), "visits")
    verdict.receipts_verified = True


def _check_uses(world: World, verified: VerifiedAgreement, verdict: Verdict) -> None:
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


def _read_receipts(world: World, verified: VerifiedAgreement, verdict: Verdict) -> None:
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
    world: World, verified: VerifiedAgreement, verdict: Verdict, run: DemoRun
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
