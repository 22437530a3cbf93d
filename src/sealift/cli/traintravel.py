"""``sealift train`` for the plan ``travel``: two roles as children, one view of them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from sealift.cli.signals import on_second_signal
from sealift.cli.trainlines import TrainLines
from sealift.cli.travelroles import ACCELERATOR, ORCHESTRATOR, TravelRoles
from sealift.errors import JobError, PeerError, UsageError
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.train.eventlines import RoleEvent, RoleResult
from sealift.train.household import Ended, Household
from sealift.train.settings import JobTable

MAX_RESTARTS: Final = 5  # of each role
GRACE_S: Final = 2.0  # the roles end together; who ends first is a race


def train_travelling(
    args: argparse.Namespace, job: JobTable, agreement: VerifiedAgreement
) -> dict[str, Any]:
    """Start orchestrator and accelerator, show what they tell, return the summary.

    Raises:
        SealiftError: what the role that failed said last, with its exit code.
    """
    _require_keys(args)
    lines = TrainLines(agreement.agreement, job, watch=args.watch, stream=sys.stderr)
    result: Mapping[str, Any] = {}
    with Household(Path.cwd()) as house:
        on_second_signal(house.kill)
        restarts = MAX_RESTARTS if job.run.rejoin_s else 0
        roles = TravelRoles(house, args, restarts=restarts, say=lines.say)
        roles.start_orchestrator()
        for told in house.listen(_silence_s(job)):
            if isinstance(told, RoleEvent):
                if told.kind == "orchestrator.listening":
                    roles.take_listening(told)
                lines.take(told)
            elif isinstance(told, RoleResult):
                result = told.content if told.process == ORCHESTRATOR else result
            elif not result and roles.start_again(told.process):
                continue
            elif _is_over(house, told):
                break
    lines.say_epoch()  # of the last one, which nothing follows
    if not result:
        raise JobError("the orchestrator gave no result", code="role-ended")
    return dict(result)


def _require_keys(args: argparse.Namespace) -> None:
    given = (args.key, args.passphrase_file, args.attester_key)
    if not all(given) or args.attester_passphrase_file is None or len(args.key) != 1:
        raise UsageError(
            "the plan travel needs two identities and their passphrase files",
            fix="Give --key and --passphrase-file of the operator, --attester-key and "
            "--attester-passphrase-file of this host",
            code="keys-missing",
        )


def _is_over(house: Household, told: Ended) -> bool:
    """Whether the job has ended well; raises what the role that failed said."""
    if told.process == ACCELERATOR:
        if not house.ends_within(ORCHESTRATOR, GRACE_S):
            house.require_success(ACCELERATOR)
        return False
    try:
        house.require_success(ORCHESTRATOR)
    except PeerError:
        # It lost the accelerator, which knows better why.
        if ACCELERATOR in house.children and house.ends_within(ACCELERATOR, GRACE_S):
            house.require_success(ACCELERATOR)
        raise
    if not house.ends_within(ACCELERATOR, GRACE_S):
        return True  # it is ended with everything else
    house.require_success(ACCELERATOR)
    return True


def _silence_s(job: JobTable) -> float:
    """How long both may say nothing before something is wrong."""
    run = job.run
    return 120.0 + max(run.gather_s, run.lease_s + run.work_s, run.wait_s, run.rejoin_s)
