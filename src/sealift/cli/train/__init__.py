"""``sealift train``: run a job on this machine, by the plan that ``job.toml`` names.

``sealift resume`` is the same for a job that was cut off, and refuses to begin it again.
The plan ``local`` is one process that reads every owner's sealed files, for whoever holds
all keys of a job: the reference that ``travel`` equals bit for bit. No evidence is shown
to anybody here, so it runs under ``accept = ["development"]`` alone.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

from sealift.attest.level import Level
from sealift.cli.arguments import Parser
from sealift.cli.console import columns, say
from sealift.cli.judging import add_judging_arguments
from sealift.cli.roles.attester import add_attester_arguments
from sealift.cli.view import add_view_argument, view_beside
from sealift.codec import encode
from sealift.crypto.identity import Identity, load_identity
from sealift.crypto.keys import SecretKey
from sealift.errors import PolicyError, UsageError, visible
from sealift.events import Event, wall_clock
from sealift.release.agreement import Agreement
from sealift.release.agreement.code import load_assets, load_bundle
from sealift.release.agreement.signed import VerifiedAgreement, load_verified
from sealift.release.broker.stores import opened_vault
from sealift.release.decision import require_visits
from sealift.release.files import read_secret_line
from sealift.release.vault.ledger import Debit, Ledger
from sealift.train.job.journal import Journal, journal_of
from sealift.train.job.roleprocesses import RoleEvent
from sealift.train.job.rolesetup import run_instead
from sealift.train.job.settings import JobTable, check_job, read_job
from sealift.train.job.talk import Talk
from sealift.train.job.trainlines import TrainLines
from sealift.train.loop.slices import plan_slice
from sealift.train.loop.statistics import STATISTICS_NAME, totals_file
from sealift.train.output.history import History
from sealift.train.output.modelfacts import describe_model, write_facts
from sealift.train.output.results import RunResult
from sealift.train.output.runfolder import RunFolder, RunName
from sealift.train.plans import PLANS, Plan
from sealift.train.plans.local import LocalRun, opened_tables, train_local
from sealift.train.sandbox import kernel as limits
from sealift.train.worker.executor import RecipeExecutor
from sealift.train.worker.taskprocess import TaskLimits
from sealift.travel.settings import run_terms
from sealift.view.report import REPORT_NAME, make_report

MAX_SHOWN: Final = 100  # characters of one total


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "train",
        description="Plan travel: starts orchestrator and accelerator on this machine and waits "
        "for the holders, which the owners start with `sealift join`. "
        "Plan ddp: starts the orchestrator, and all ranks unless rows stay with their "
        "owners; then each owner starts its rank with `sealift join`. "
        "Plan local: one process reads the sealed files of all owners; give --vault, --key "
        "and --passphrase-file once for each owner. docs/reference/job.md explains JOB.",
    )
    parser.set_defaults(run=run, must_resume=False)
    _add_train_arguments(parser)


def _add_train_arguments(parser: Parser) -> None:
    """Add what `sealift resume` takes as well."""
    parser.add_path("job", metavar="JOB", help="the job, a TOML file")
    parser.add_path("--output", metavar="DIR", help="results; default: as in the job")
    parser.add_flag("--watch", "print a line for each visit")
    add_view_argument(parser)
    parser.add_json()
    for option, text in (
        ("--key", "the operator's identity key; plan local: those of all owners"),
        (
            "--passphrase-file",
            "the key's passphrase; for several, in the order of the keys",
        ),
        ("--vault", "plan local: the vaults of all owners, in the order of the keys"),
        ("--sealed", "plans local and ddp: folders with sealed files and cards"),
    ):
        parser.add_argument(
            option, type=Path, action="append", default=[], metavar="PATH", help=text
        )
    parser.add_file(
        "--attester-key", help="this host's key, if an accelerator runs here"
    )
    parser.add_file("--attester-passphrase-file")
    text = "where to listen; default: as in the job"
    parser.add_argument("--orchestrator", metavar="HOST:PORT", help=text)
    text = "checkpoints; default: state/NAME beside the job"
    parser.add_path("--state", metavar="DIR", help=text)
    add_judging_arguments(parser)
    add_attester_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run the job; the exit code."""
    job = read_job(args.job)
    agreement = load_verified(Path(job.agreement))
    check_job(job, agreement)
    plan = PLANS[job.plan]
    require_train(plan)
    with view_beside(args.job.resolve().parent, job.name, wanted=args.view):
        if not plan.roles:
            summary = _train_locally(args, job, agreement)
        else:
            from sealift.cli.train.travel import train_travelling

            summary = train_travelling(args, job, agreement)
    if args.json:
        print(json.dumps(summary))
    else:
        _show(summary)
    return 0


def require_train(plan: Plan) -> None:
    """Demand a plan that this command runs.

    Raises:
        UsageError: ``other-plan``.
    """
    if plan.command != "train":
        raise UsageError(
            f"`sealift train` does not run plan {plan.name}",
            fix=run_instead(plan),
            code="other-plan",
        )


def _show(result: RunResult) -> None:
    sums = {n: _shortened(each) for n, each in result.get("statistics", {}).items()}
    facts = {n: v for n, v in result.items() if n not in ("metrics", "statistics")}
    for line in columns({**facts, **result["metrics"], **sums}, 20):
        print(visible(line))


def _shortened(value: Any) -> str:
    """A total on one line; ``statistics.json`` has all of it."""
    text = json.dumps(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def add_resume(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "resume",
        description="Like `sealift train`, which also continues from a checkpoint if there is "
        "one; but this command fails if there is none. Only the last checkpoint in the "
        "owners' logs can be opened.",
    )
    parser.set_defaults(run=_run_resume, must_resume=True)
    _add_train_arguments(parser)


def _run_resume(args: argparse.Namespace) -> int:
    """Go on; the exit code."""
    plan = PLANS[read_job(args.job).plan]
    if not plan.checkpoints:
        raise UsageError(
            f"a job of plan {plan.name} has no checkpoints", code="nothing-to-resume"
        )
    return run(args)


MODEL_NAME = "model.safetensors"
RESULT_NAME = "result.json"


def _train_locally(
    args: argparse.Namespace, job: JobTable, agreement: VerifiedAgreement
) -> RunResult:
    """Run every planned slice here; write model and result; return the summary.

    Raises:
        SealiftError: if a key or file is missing or another, or the recipe fails.
    """
    require_development(agreement)
    files = load_bundle(Path(job.bundle), agreement.agreement.code)
    with ExitStack() as stack:
        place = args.output or Path(job.output)
        name = RunName(job.name, agreement.digest)
        folder = stack.enter_context(RunFolder(place, name))
        keys = owners_keys(
            args, agreement, stack, partial(_count_local, job, agreement.agreement)
        )
        limits.hide_memory()
        executor = stack.enter_context(_executor(agreement, job, files))
        executor.compute_on(job.run.device)
        rows = stack.enter_context(
            opened_tables(agreement.agreement, args.sealed, keys)
        )
        talk = Talk(sys.stderr)
        lines = TrainLines(agreement.agreement, job, watch=args.watch, talk=talk)
        here = journal_of(args.job.resolve().parent, job.name)

        def tell(event: Event) -> None:
            now_s = time.monotonic()
            lines.take(RoleEvent("train", now_s, event.kind, event.fields))

        journal = Journal(here, "train", tell, wall_clock)
        journal.begin(job=job.name, plan=job.plan, agreement=agreement.digest.to_text())
        args.ended = journal.end
        history = History(place, name, journal)
        lines.begin_here(time.monotonic())
        ran = train_local(
            agreement.agreement,
            job.settings,
            executor,
            lend_rows=rows,
            sink=history,
        )
        lines.say_pass()
        talk.wait_for("")
        if len(ran.model):
            facts = describe_model(
                agreement.agreement,
                agreement.digest,
                job.settings.training.parameters,
                job=job.name,
                level=Level.DEVELOPMENT.value,
                plan="local",
                steps=ran.steps,
                rows=ran.rows,
                metrics=ran.metrics,
                statistics=ran.statistics,
                weights=ran.weights,
            )
            folder.add(MODEL_NAME, write_facts(ran.model, facts))
        if ran.statistics:
            folder.add(STATISTICS_NAME, totals_file(ran.statistics, ran.prepared))
        result = _result_of(ran, folder.path, agreement, executor)
        folder.add(RESULT_NAME, encode(result))
        history.keep(folder)
        size = len(ran.model)
        page = make_report(job, agreement.agreement, history.rows, result, size)
        folder.add(REPORT_NAME, page)
        folder.appear()
        history.forget()
    return result


def _result_of(
    ran: LocalRun, folder: Path, agreement: VerifiedAgreement, executor: RecipeExecutor
) -> RunResult:
    result: RunResult = {
        "run": str(folder),
        "plan": "local",
        "level": Level.DEVELOPMENT.value,
        "sandbox": executor.sandbox,
        "device": executor.device(),
        "agreement": agreement.digest.to_text(),
        "steps": ran.steps,
        "metrics": ran.metrics,
    }
    if ran.weights is not None:
        result["weights"] = ran.weights.to_text()
    if ran.statistics:
        result["prepared"] = ran.prepared
        result["statistics"] = {n: s.nested() for n, s in ran.statistics.items()}
    return result


def _executor(
    agreement: VerifiedAgreement, job: JobTable, files: dict[str, bytes]
) -> RecipeExecutor:
    text = sys.stderr if agreement.agreement.output_rule.recipe_text else None
    most = TaskLimits(work_s=job.run.work_s)
    return RecipeExecutor(
        files,
        agreement.agreement.code.entry,
        text=text,
        limits=most,
        tell=say,
        assets=load_assets(Path(job.bundle), agreement.agreement.code.files),
    )


def _count_local(
    job: JobTable, agreement: Agreement, ledger: Ledger, identity: Identity
) -> None:
    """The run, its keys and its passes, as an owner's broker counts them: all at once."""
    owner, line, settings = identity.name, agreement.name, job.settings
    run = run_terms(job.name, "local", settings)
    runs = agreement.training_rule.runs
    ledger.count_run(line, run.digest(agreement.digest), runs)
    for resource in agreement.resources_of(owner):
        limit = resource.rule.max_uses
        ledger.debit(line, resource.name, limit, identity.public_key)
    plans = (plan_slice(agreement, settings, n) for n in range(settings.slices.count))
    stops = (stop for plan in plans for group in plan for stop in group.stops)
    visits = Counter(stop.purpose for stop in stops if stop.holder == owner)
    most = agreement.output_rule.max_visits
    for purpose, count in visits.items():
        debit = Debit.of_visits(line, purpose, count, secrets.token_bytes(32))
        ledger.spend(debit, lambda total: require_visits(total, most, owner))


def require_development(agreement: VerifiedAgreement) -> None:
    """Demand the one level that needs no evidence.

    Raises:
        PolicyError: ``level-refused``.
    """
    if agreement.accept != (Level.DEVELOPMENT,):
        raise PolicyError(
            "plan local has no attestation evidence",
            why=f"the agreement accepts {', '.join(agreement.accept)}",
            fix="Use plan travel",
            code="level-refused",
        )


def owners_keys(
    args: argparse.Namespace,
    agreement: VerifiedAgreement,
    stack: ExitStack,
    count: Callable[[Ledger, Identity], None] = lambda ledger, owner: None,
) -> dict[str, SecretKey]:
    """Every table's key, out of every owner's vault.

    Args:
        args: Name keys, passphrases and vaults.
        agreement: Names the tables.
        stack: Closes the vaults.
        count: Counts in an owner's ledger what will be done with its keys.

    Raises:
        UsageError: ``keys-missing``.
        SealiftError: an identity or a vault does not open, or a vault has no such key.
        PolicyError: ``too-many-runs``, ``uses-exhausted``, ``too-many-visits``.
    """
    if not args.key or {len(args.key)} != {
        len(args.passphrase_file),
        len(args.vault),
    }:
        raise UsageError(
            "plan local needs the keys of all owners",
            fix="Give --key, --passphrase-file and --vault once for each owner, in one order",
            code="keys-missing",
        )
    keys: dict[str, SecretKey] = {}
    for key, passphrase, path in zip(
        args.key, args.passphrase_file, args.vault, strict=True
    ):
        identity = load_identity(key, read_secret_line(passphrase))
        vault = stack.enter_context(opened_vault(path, identity))
        count(vault.ledger, identity)
        for resource in agreement.agreement.resources_of(identity.name):
            keys[resource.name] = vault.fetch(resource.name)
    return keys
