"""``sealift join``: take part in a job as a data owner, with a broker and a holder.

In plan ``ddp`` the rows stay with their owner, and its rank runs instead of a holder.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from sealift.cli.console import say, unlock
from sealift.cli.judging import equip_from
from sealift.cli.roles import (
    add_dialler_arguments,
    add_role_arguments,
    dialler,
    keep_run_in,
    require_data_owner,
    set_up_role,
    statements_folder,
)
from sealift.cli.roles.accelerator import run_rank
from sealift.cli.roles.attester import add_attester_arguments, evidence_places
from sealift.cli.roles.broker import (
    BrokerBeside,
    add_store_arguments,
    broker_command,
)
from sealift.cli.view import add_view_argument, view_beside, write_report
from sealift.crypto.identity import Identity
from sealift.errors import (
    JobError,
    PeerError,
    PolicyError,
    SealiftError,
    UnavailableError,
    UsageError,
    meaning,
)
from sealift.events import Sink, emit, wall_clock
from sealift.ids import Role
from sealift.release.agreement import Agreement
from sealift.release.agreement.phrases import say_list
from sealift.release.agreement.signed import VerifiedAgreement, load_signed, verify
from sealift.release.agreement.statements import ENDS
from sealift.release.broker.inforce import StatementsInForce
from sealift.release.files import make_folder
from sealift.release.log.heads import HeadStore
from sealift.session.relay.client import DIAL_TIMEOUT_S, RelayClient
from sealift.session.relay.envelope import prover
from sealift.train.job.heldfiles import check_keys, load_held
from sealift.train.job.hostattester import open_attester
from sealift.train.job.journal import FINISHED
from sealift.train.job.rejoin import Joined, Rejoining
from sealift.train.job.rolesetup import RoleSetup, own_enroller
from sealift.train.job.settings import parse_address, read_job
from sealift.train.job.signals import StopRequested, on_second_signal
from sealift.train.job.talk import open_events
from sealift.train.output.history import History
from sealift.train.output.results import PartResult
from sealift.train.output.runfolder import RunName
from sealift.train.plans import PlanRole
from sealift.travel.holder.jobs import HolderJob, Receipts
from sealift.travel.holder.visit import SERVED_NAME, HeldResource, ServedVisits
from sealift.travel.notify import tell_running
from sealift.travel.peers import relay_name
from sealift.travel.visit.memory import overwrite_live_pools, restart_overwriting
from sealift.travel.visit.messages import Finished

TELLING_S: Final = 30.0  # the orchestrator may start after its owners


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "join",
        run=run,
        description="Runs your broker and holder until the job ends; with plan ddp your broker "
        "and rank. Both connect to the orchestrator; nothing listens on this machine. With an "
        "invitation instead of JOB this is another command: `sealift join INVITATION --help`.",
    )
    add_role_arguments(parser)
    add_store_arguments(parser)
    text = "folder with your sealed files and cards"
    parser.add_path("--sealed", required=True, metavar="DIR", help=text)
    text = "folder for the receipts"
    parser.add_path("--receipts", required=True, metavar="DIR", help=text)
    text = "the last head of each log; default: heads.json beside the log"
    parser.add_file("--heads", help=text)
    parser.add_flag("--holder-only", "run no broker, because it runs elsewhere")
    add_dialler_arguments(parser)
    parser.add_path(
        "--state", metavar="DIR", help="plan ddp: checkpoints of the first rank"
    )
    add_attester_arguments(parser)
    add_view_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Attend until the job ends."""
    if not args.holder_only:
        require_passphrase_file(args)
    job = read_job(args.job)
    folder = args.job.resolve().parent
    at_home = job.plan == "ddp" and not args.holder_only
    if at_home:
        if find_spec("torch") is None:
            raise ModuleNotFoundError(name="torch")
        restart_overwriting("sealift")  # before anything is started beside
    with view_beside(folder, job.name, wanted=args.view):
        code = _train_at_home(args) if at_home else _hold(args)
        args.ended(FINISHED, "")
        path = write_report(folder, job.name, args.receipts.parent)
        say(f"the report of this run is in {path}")
    return code


def _set_up(args: argparse.Namespace, role: PlanRole) -> RoleSetup:
    """As ``set_up_role``; if a statement has ended the agreement, the others hear of it first."""
    try:
        return set_up_role(args, role)
    except PolicyError as error:
        if error.code in ENDS:
            _tell_others_at_start(args)
        raise


def _tell_others_at_start(args: argparse.Namespace) -> None:
    job = read_job(args.job)
    file = Path(job.agreement)
    before = verify(load_signed(file))  # who said something since is to be heard
    identity = unlock(args, args.key)
    agreement = equip_from(args, before, own_enroller(before, identity))
    address = parse_address(args.orchestrator) if args.orchestrator else job.address
    statements = StatementsInForce(agreement, file.parent, clock=wall_clock)
    _tell_others(address, agreement, identity, statements, open_events(args.events, {}))


def _tell_others(
    address: tuple[str, int],
    agreement: VerifiedAgreement,
    identity: Identity,
    statements: StatementsInForce,
    sink: Sink,
) -> None:
    """Who is there hears what was said of the agreement; who was not told is named."""
    for each in statements.known():
        try:
            told = tell_running(address, agreement, identity, each, dial_s=TELLING_S)
            for who, problem in told:
                emit(sink, "statement.told", who=who, line=problem or "has heard of it")
        except SealiftError as error:  # the orchestrator may be gone
            emit(sink, "statement.told", who="the orchestrator", line=str(error))
            return  # and would be asked in vain again, for as long


def _hold(args: argparse.Namespace) -> int:
    """Bring rows to whoever visits, until the job ends."""
    setup = _set_up(args, "holder")
    require_data_owner(setup, "holder")
    with ExitStack() as stack:
        held = load_held(setup, args.sealed, stack)
        if not args.holder_only:
            check_keys(setup, args.vault, held)
        make_folder(args.receipts)
        holder = _Holder(args, setup, held)
        if args.holder_only:
            finished = holder.attend()
        else:
            finished = _attend_with_broker(args, holder)
    if finished.outcome != "finished":
        raise _job_ended(finished, setup.agreement.agreement)
    receipts, heldout = holder.receipts, holder.history.heldout()
    result: PartResult = {
        "receipts": receipts.kept,
        "failed": receipts.failed,
        "heldout": heldout,
    }
    print(json.dumps(result))
    require_kept(receipts.lost, args.receipts)
    return 0


def _job_ended(finished: Finished, agreement: Agreement) -> JobError:
    """Why a job ended that failed elsewhere, as its operator's machine names it."""
    missing = [each for each in finished.missing if each in agreement.holders]
    known = meaning(finished.code)
    who = f" and says that {say_list(missing)} did not connect" if missing else ""
    code = finished.code if known else JobError.default_code
    return JobError(
        f"{agreement.operator} ended the job for all parties{who}",
        why=f"its machine says: {known}" if known else "its machine did not say why",
        fix=f"`sealift explain {code}` says what can be done; then start every party's command "
        "again: the job continues from its checkpoint if it has one",
        code=code,
    )


def require_kept(lost: int, folder: Path) -> None:
    """A receipt that was lost is no success: its rows were used all the same.

    Raises:
        JobError: ``receipt-lost``.
    """
    if lost:
        raise JobError(
            f"{lost:,} receipts were lost",
            why=f"they could not be written to {folder}",
            code="receipt-lost",
        )


def _train_at_home(args: argparse.Namespace) -> int:
    """Train beside the other owners' ranks; the broker runs beside this one.

    Raises:
        JobError: ``role-ended``; what the broker said stands on stderr.
        ModuleNotFoundError: for torch, before a process is started that lacks it.
    """
    on_second_signal(overwrite_live_pools)
    setup = _set_up(args, "accelerator")
    require_data_owner(setup, "rank")
    require_rows_at_home(setup)
    name = RunName(setup.job.name, setup.agreement.digest)
    setup = replace(setup, sink=History(args.receipts, name, setup.sink))
    attester = open_attester(setup, evidence_places(args))
    words = {**vars(args), "sealed": [args.sealed], "dial": args.direct}
    words |= {"direct": None, "direct_listen": None}
    words |= {"rank": None, "must_resume": False}
    with BrokerBeside(broker_command(args), ended=_interrupt, say=say) as broker:
        try:
            return run_rank(argparse.Namespace(**words), setup, attester)
        except (PeerError, StopRequested):
            if not broker.failed:
                raise
            raise _broker_ended("rank") from None


def require_rows_at_home(setup: RoleSetup) -> None:
    """Demand that every owner trains on its own rows.

    Raises:
        UsageError: ``other-plan``.
    """
    if not setup.agreement.agreement.rows_at_home:
        raise UsageError(
            "in this job the rows are not used on their owners' machines",
            fix="Run `sealift broker` instead",
            code="other-plan",
        )


def _interrupt() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


class _Holder:
    """Attends over one connection after another, with an instance key for each."""

    def __init__(
        self, args: argparse.Namespace, setup: RoleSetup, held: dict[str, HeldResource]
    ) -> None:
        name = RunName(setup.job.name, setup.agreement.digest)
        self.history = History(args.receipts, name, setup.sink)
        self._args, self._held = args, held
        self._setup = replace(setup, sink=self.history)
        self._rejoining = Rejoining(setup.job.run.rejoin_s, sink=setup.sink)
        self._relay: RelayClient | None = None
        self._leaving = threading.Event()
        self._statements = StatementsInForce(
            setup.agreement, statements_folder(setup), clock=wall_clock
        )
        self.receipts = Receipts(args.receipts)

    def attend(self) -> Finished:
        """Until the job has ended.

        Raises:
            PolicyError: what our own side was told: it left, or the agreement ended.
                The others were told as well, as far as they are there.
        """
        try:
            return self._rejoining.run(self._attend)
        except PolicyError as error:
            if error.code in ENDS:
                setup = self._setup
                _tell_others(
                    setup.address,
                    setup.agreement,
                    setup.identity,
                    self._statements,
                    setup.sink,
                )
            raise

    def leave(self) -> None:
        """End at once, from another thread."""
        self._leaving.set()
        if self._relay is not None:
            self._relay.close()

    def _attend(self, joined: Joined) -> Finished:
        with _holder_link(self._setup, self._rejoining.dial_s) as self._relay:
            if self._leaving.is_set():
                raise PeerError("the holder was asked to leave", code="role-ended")
            holder = _make_holder(
                self._args,
                self._setup,
                self._relay,
                self._held,
                self._statements,
                receipts=self.receipts,
            )
            try:
                return holder.serve(joined)
            except PeerError as error:
                if self._leaving.is_set():
                    error.code = "role-ended"
                raise


def _attend_with_broker(args: argparse.Namespace, holder: _Holder) -> Finished:
    """Attend beside the broker; its failure is ours.

    Raises:
        JobError: ``role-ended``; what the broker said stands on stderr.
    """
    command = broker_command(args)
    with BrokerBeside(command, ended=holder.leave, say=say) as broker:
        try:
            return holder.attend()
        except PeerError:
            if not broker.failed:
                raise
            raise _broker_ended("holder") from None


def _broker_ended(role: str) -> JobError:
    return JobError(
        f"the broker beside the {role} has ended",
        why="the line above shows its error",
        code="role-ended",
    )


def _holder_link(setup: RoleSetup, dial_s: float = DIAL_TIMEOUT_S) -> RelayClient:
    """Dial the relay under the holder's name."""
    name = relay_name(Role.HOLDER, setup.identity.name)
    prove = prover(setup.identity, setup.agreement.digest, name)
    return RelayClient.dial(setup.address, name, dial_s, prove)


def _make_holder(
    args: argparse.Namespace,
    setup: RoleSetup,
    relay: RelayClient,
    held: dict[str, HeldResource],
    statements: StatementsInForce,
    *,
    receipts: Receipts,
) -> HolderJob:
    """The holder of this command line."""
    heads = args.heads or args.log.with_name("heads.json")
    endpoint = setup.endpoint(Role.HOLDER)
    return HolderJob(
        relay,
        endpoint,
        setup.agreement,
        held=held,
        heads=HeadStore(heads),
        served=ServedVisits(heads.with_name(SERVED_NAME)),
        receipts=receipts,
        run=setup.run,
        clock=time.monotonic,
        receipt_wait_s=setup.job.run.lease_s + setup.job.run.work_s,
        dialler=dialler(args),
        sink=setup.sink,
        statements=statements,
        keep_run=keep_run_in(args.receipts.parent, setup),
    )


def require_passphrase_file(args: argparse.Namespace) -> None:
    """Two processes need the passphrase, and only one could ask.

    Raises:
        UnavailableError: ``no-terminal``.
    """
    if args.passphrase_file is None:
        raise UnavailableError(
            "the broker beside the holder needs a passphrase file",
            fix="Name one with --passphrase-file, or run `sealift broker` and "
            "`sealift join --holder-only`",
            code="no-terminal",
        )
