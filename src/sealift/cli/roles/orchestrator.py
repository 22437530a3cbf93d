"""``sealift orchestrator``: relay connections and schedule visits. It sees no data and no key."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from sealift.cli.roles import (
    add_role_arguments,
    reported,
    require_party,
    set_up_role,
    statements_folder,
)
from sealift.codec import encode
from sealift.data.schedule.visits import Stop
from sealift.errors import PolicyError, Stopping
from sealift.events import emit, wall_clock
from sealift.ids import Role
from sealift.release.broker.inforce import StatementsInForce
from sealift.release.files import read_whole
from sealift.session.endpoint import Endpoint
from sealift.session.relay.client import RelayClient
from sealift.session.relay.server import Relay
from sealift.train.job.rolesetup import RoleSetup
from sealift.train.output.history import History
from sealift.train.output.results import RunResult
from sealift.train.output.runfolder import RunFolder, RunName
from sealift.train.plans import Coverage
from sealift.train.ranks.orchestrator import GroupOrchestrator
from sealift.travel.broker import dismiss_brokers
from sealift.travel.orchestrator.job import Orchestrator, RunSummary, dismiss_roles
from sealift.travel.orchestrator.sessions import Acceptor, LiveSessions
from sealift.travel.peers import accelerator_names, registry_of
from sealift.travel.visit.messages import (
    MAX_RUN_RECEIPT_BYTES,
    RUN_RECEIPT_NAME,
    Output,
    StartJob,
)
from sealift.view.report import REPORT_NAME, make_report

# Time for those that lost a killed orchestrator to connect again and hear that the job has ended.
FAREWELL_WAIT_S: Final = 60.0


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "orchestrator",
        run=run,
        description="Listens on the job's address, waits for the accelerator and the holders, "
        "and runs each planned visit. Needs the operator's identity key.",
    )
    add_role_arguments(parser)
    parser.add_path("--output", metavar="DIR", help="results; default: as in the job")
    parser.add_status()


def run(args: argparse.Namespace) -> int:
    """Run the job; the result goes to stdout as JSON."""
    setup = set_up_role(args, "orchestrator")
    setup = reported(setup, args.status, "orchestrator")
    operator = setup.agreement.agreement.operator
    require_party(setup, operator, "orchestrator")
    with ExitStack() as stack:
        place = args.output or Path(setup.job.output)
        name = RunName(setup.job.name, setup.agreement.digest)
        folder = stack.enter_context(RunFolder(place, name))
        history = History(place, name, setup.sink)
        summary = _orchestrate(replace(setup, sink=history), folder, history, stack)
    print(json.dumps(summary))
    return 0


def _awaited(setup: RoleSetup) -> tuple[str, ...]:
    agreement = setup.agreement.agreement
    return (*accelerator_names(agreement.ranks), *_holders(setup))


def _holders(setup: RoleSetup) -> tuple[str, ...]:
    return () if setup.job.plan == "ddp" else setup.agreement.agreement.holders


def _orchestrate(
    setup: RoleSetup, folder: RunFolder, history: History, stack: ExitStack
) -> RunResult:
    host, port = setup.address
    registry = registry_of(setup.agreement)
    relay = stack.enter_context(
        Relay.listen(host, port, registry=registry, sink=setup.sink, clock=wall_clock)
    )
    listening = relay.address
    emit(
        setup.sink,
        "orchestrator.listening",
        host=listening[0],
        port=listening[1],
        awaits=", ".join(_awaited(setup)),
    )
    endpoint = setup.endpoint(Role.ORCHESTRATOR)
    sessions = LiveSessions(clock=time.monotonic)
    client = stack.enter_context(relay.local_client())
    stack.callback(sessions.close)
    stack.push(partial(_cut_if_stopped, relay))
    statements = StatementsInForce(
        setup.agreement, statements_folder(setup), clock=wall_clock
    )
    door = Acceptor(
        client,
        endpoint,
        setup.agreement,
        sessions=sessions,
        vouch=relay.vouch,
        sink=setup.sink,
        accelerators=accelerator_names(setup.agreement.agreement.ranks),
        statements=statements,
        obey=partial(_obey, setup, sessions, statements),
    )
    door.start()
    if folder.complete:
        return _say_farewell(setup, folder, sessions, client, endpoint)
    dismiss = partial(dismiss_brokers, client, endpoint, setup.agreement)
    try:
        outputs = _Outputs(folder, setup, history)
        start = StartJob(setup.job.name, encode(setup.job.settings))
        receipt = _orchestrator(setup, sessions).run(start, outputs).receipt
    except Exception:  # but not a stop: then brokers wait for the next start
        dismiss("failed")
        raise
    dismiss("finished", receipt=receipt)
    return outputs.summary


def _obey(
    setup: RoleSetup, sessions: LiveSessions, statements: StatementsInForce
) -> None:
    """Wait no more for who has left the agreement, or for anybody where nothing can be done."""
    verified, error = statements.judged()
    if error is not None:
        sessions.end(error)
        return
    agreement, settings = verified.agreement, setup.job.settings
    for owner in agreement.holders:
        try:
            verified.require_owner_signed(owner)
        except PolicyError as left:
            sessions.await_no_more((Role.HOLDER, owner), left)
            if setup.job.plan == "ddp" or settings.travel.on_missing == "wait":
                if agreement.rows_at_home and owner in agreement.data_owners:
                    left.ranks = (agreement.data_owners.index(owner),)
                sessions.end(left)


def _cut_if_stopped(
    relay: Relay, _kind: object, error: BaseException | None, _trace: object
) -> None:
    """As if killed: the others dial again, until the same command is given again."""
    if isinstance(error, Stopping):
        relay.close()


def _orchestrator(
    setup: RoleSetup, sessions: LiveSessions
) -> Orchestrator | GroupOrchestrator:
    """By the job's plan."""
    settings, sink = setup.job.settings, setup.sink
    if setup.job.plan == "ddp":
        return GroupOrchestrator(
            setup.agreement, settings, sessions=sessions, sink=sink
        )
    return Orchestrator(
        setup.agreement,
        settings,
        sessions=sessions,
        signer=setup.identity,
        job=setup.job.name,
        plan=setup.job.plan,
        clock=time.monotonic,
        sink=sink,
        hopes=partial(_may_hand_out, setup),
    )


def _may_hand_out(setup: RoleSetup, stops: Iterable[Stop]) -> bool:
    """Whether the accelerator could let a model out after these visits.

    It decides; this is so that nobody waits for what it will refuse.
    """
    agreement = setup.agreement.agreement
    try:
        if setup.job.settings.training.epochs:
            coverage = Coverage.of(stops, agreement.data_owners)
            coverage.require(agreement.output_rule)
    except PolicyError:
        return False
    return True


def _say_farewell(
    setup: RoleSetup,
    folder: RunFolder,
    sessions: LiveSessions,
    client: RelayClient,
    endpoint: Endpoint,
) -> RunResult:
    """The run was complete when the orchestrator was killed: tell whoever waits for it."""
    summary = folder.summary_before(setup.agreement)
    emit(setup.sink, "job.complete", run=summary["run"])
    until = time.monotonic() + min(setup.job.run.rejoin_s, FAREWELL_WAIT_S)
    place = folder.path / RUN_RECEIPT_NAME  # not there if it was refused
    receipt = read_whole(place, MAX_RUN_RECEIPT_BYTES) if place.exists() else b""
    agreement = setup.agreement
    dismiss_brokers(  # before ranks, which end their brokers
        client, endpoint, agreement, "finished", until=until, receipt=receipt
    )
    dismiss_roles(
        sessions,
        agreement,
        "finished",
        until=until,
        accelerators=accelerator_names(agreement.agreement.ranks),
        holders=_holders(setup),
        receipt=receipt,
    )
    return summary


class _Outputs:
    """The run's folder, as the orchestrator fills it."""

    def __init__(self, folder: RunFolder, setup: RoleSetup, history: History) -> None:
        self._folder, self._setup, self._history = folder, setup, history
        self.summary: RunResult = {}

    def clear(self) -> None:
        """From the beginning."""
        self._folder.clear()

    def write(self, output: Output) -> None:
        """One piece."""
        self._folder.write_output(output)

    def keep_fault(self, output: Output) -> None:
        """Beside the folder, which does not appear."""
        self._folder.keep_fault(output)

    def keep(self, summary: RunSummary) -> None:
        """Verify the manifest and let the folder appear."""
        agreement = self._setup.agreement
        settings = self._setup.job.settings
        self.summary = self._folder.finish(summary, agreement, settings, self._complete)
        if refused := self._folder.refusal:
            line = f"{refused}; the model was written, but no receipt"
            emit(self._setup.sink, "receipt.refused", reason=refused.code, line=line)
        self._history.forget()

    def _complete(self, result: RunResult) -> None:
        self._history.keep(self._folder)
        size = self._folder.size_bytes("model.sealed")
        agreement, rows = self._setup.agreement.agreement, self._history.rows
        page = make_report(self._setup.job, agreement, rows, result, size)
        self._folder.add(REPORT_NAME, page)
