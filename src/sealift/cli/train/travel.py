"""``sealift train`` for plans with roles: some of them as children, one view of them.

The children are the orchestrator and the accelerators of this host: one, or with the plan
``ddp`` all ranks, or none where rows stay at home; progress is plain lines on stderr. One
that was killed is started again, a few times: the others wait for it, and the
job goes on from its last checkpoint. One that ended by itself said why, and is not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, cast

from sealift.cli.judging import JUDGING, option_words
from sealift.cli.roles.attester import HOST
from sealift.errors import JobError, PeerError, UsageError
from sealift.release.agreement import Agreement
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.train.job.roleprocesses import Ended, RoleEvent, RoleProcesses, RoleResult
from sealift.train.job.settings import JobTable
from sealift.train.job.signals import followed, on_second_signal, stop_postponed
from sealift.train.job.talk import Talk
from sealift.train.job.trainlines import TrainLines
from sealift.train.output.results import RunResult
from sealift.travel.peers import accelerator_names

ORCHESTRATOR: Final = "orchestrator"
ACCELERATOR: Final = "accelerator"


def accelerators_here(agreement: Agreement) -> tuple[str, ...]:
    """Processes of this host: none, if every owner starts its own with `sealift join`."""
    if agreement.rows_at_home:
        return ()
    if agreement.ranks == 1:
        return (ACCELERATOR,)
    return accelerator_names(agreement.ranks)


class TravelRoles:
    """Starts all, and again.

    Args:
        processes: Where they run.
        args: Of the command.
        accelerators: Of this host, by their processes' names.
        restarts: Most times that each is started again.
        say: Gets a line for people.
    """

    def __init__(
        self,
        processes: RoleProcesses,
        args: argparse.Namespace,
        accelerators: tuple[str, ...],
        *,
        restarts: int,
        say: Callable[[str], None],
    ) -> None:
        self._processes = processes
        self._args = args
        self._say = say
        self._address = args.orchestrator
        self._listening: RoleEvent | None = None
        self._accelerators = accelerators
        self._left = dict.fromkeys((ORCHESTRATOR, *accelerators), restarts)

    def start_orchestrator(self) -> None:
        """At the address that was asked for, or where it listened before."""
        args = self._args
        words: list[str | Path] = [ORCHESTRATOR, args.job, "--events", "-"]
        words += ["--key", args.key[0], "--passphrase-file", args.passphrase_file[0]]
        if args.output is not None:
            words += ["--output", args.output]
        if self._address is not None:
            words += ["--orchestrator", self._address]
        words += option_words(args, JUDGING)
        self._start(ORCHESTRATOR, words)

    def take_listening(self, event: RoleEvent) -> None:
        """The orchestrator listens: time for who is not there yet."""
        self._address = f"{event.text('host')}:{event.fields['port']}"
        self._listening = event
        for name in self._accelerators:
            if name not in self._processes.children:
                self._start_accelerator(name, event)

    def start_again(self, name: str) -> bool:
        """Start a role that was killed; False if it ended otherwise, or too often."""
        if not self._left[name] or not self._processes.was_killed(name):
            return False
        self._left[name] -= 1
        self._say(f"the {name} was killed; it was started again")
        if name == ORCHESTRATOR:
            self.start_orchestrator()
        elif self._listening is not None:
            self._start_accelerator(name, self._listening)
        return True

    def _start_accelerator(self, name: str, listening: RoleEvent) -> None:
        args, host = self._args, listening.text("host")
        here = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104 - compared
        words: list[str | Path] = [ACCELERATOR, args.job, "--events", "-"]
        words += ["--orchestrator", f"{here}:{listening.fields['port']}"]
        words += ["--key", args.attester_key]
        words += ["--passphrase-file", args.attester_passphrase_file]
        if len(self._accelerators) > 1:
            words += ["--rank", str(self._accelerators.index(name))]
        for folder in args.sealed:
            words += ["--sealed", folder]
        if args.state is not None:
            words += ["--state", args.state]
        if args.must_resume:
            words.append("--must-resume")
        words += option_words(args, (*JUDGING, *HOST))
        self._start(name, words)

    def _start(self, name: str, words: list[str | Path]) -> None:
        with stop_postponed():
            self._processes.start(name, "sealift", words, followed())


MAX_RESTARTS: Final = 5  # of each role
GRACE_S: Final = 2.0  # the roles end together; who ends first is a race


def train_travelling(
    args: argparse.Namespace, job: JobTable, agreement: VerifiedAgreement
) -> RunResult:
    """Start the roles of this host, show what they tell, return the summary.

    Raises:
        SealiftError: what the role that failed said last, with its exit code.
    """
    accelerators = accelerators_here(agreement.agreement)
    require_keys(args, attester=bool(accelerators))
    talk = Talk(sys.stderr)
    lines = TrainLines(agreement.agreement, job, watch=args.watch, talk=talk)
    result: Mapping[str, Any] = {}
    with RoleProcesses(Path.cwd()) as processes:
        on_second_signal(processes.kill, ends_children=True)
        restarts = MAX_RESTARTS if job.run.rejoin_s else 0
        roles = TravelRoles(
            processes, args, accelerators, restarts=restarts, say=lines.say
        )
        roles.start_orchestrator()
        for told in processes.listen(_silence_s(job)):
            if isinstance(told, RoleEvent):
                if told.kind == "orchestrator.listening":
                    roles.take_listening(told)
                lines.take(told)
            elif isinstance(told, RoleResult):
                result = told.content if told.process == ORCHESTRATOR else result
            elif not result and roles.start_again(told.process):
                continue
            elif _is_over(processes, accelerators, told):
                break
    lines.say_pass()  # of the last one, which nothing follows
    if not result:
        raise JobError("the orchestrator ended without a result", code="role-ended")
    return cast("RunResult", result)  # as its own orchestrator printed it


def require_keys(args: argparse.Namespace, *, attester: bool) -> None:
    """Demand the operator's identity, and the host's if an accelerator runs here.

    Raises:
        UsageError: ``keys-missing``.
    """
    given = [args.key, args.passphrase_file]
    if attester:
        given += [args.attester_key, args.attester_passphrase_file]
    if not all(given) or len(args.key) != 1:
        both = ", and --attester-key and --attester-passphrase-file of this host"
        raise UsageError(
            "identity keys or their passphrase files are missing",
            fix=f"Give --key and --passphrase-file of the operator{both if attester else ''}",
            code="keys-missing",
        )


def _is_over(
    processes: RoleProcesses, accelerators: tuple[str, ...], told: Ended
) -> bool:
    """Whether the job has ended well; raises what the role that failed said."""
    if told.process != ORCHESTRATOR:
        if not processes.ends_within(ORCHESTRATOR, GRACE_S):
            processes.require_success(told.process)
        return False
    started = [each for each in accelerators if each in processes.children]
    try:
        processes.require_success(ORCHESTRATOR)
    except PeerError:
        # It lost an accelerator, which knows better why.
        for name in started:
            if processes.ends_within(name, GRACE_S):
                processes.require_success(name)
        raise
    for name in started:  # one that does not end is ended with everything else
        if processes.ends_within(name, GRACE_S):
            processes.require_success(name)
    return True


def _silence_s(job: JobTable) -> float:
    """How long both may say nothing before something is wrong."""
    run = job.run
    return 120.0 + max(run.gather_s, run.lease_s + run.work_s, run.wait_s, run.rejoin_s)
