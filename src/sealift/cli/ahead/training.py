"""`sealift train JOB --dry-run`: what the operator can know before anybody is asked."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path

from sealift.cli.ahead.checks import Checks, Unknown
from sealift.cli.ahead.dryrun import of_job
from sealift.cli.ahead.looks import (
    look_at_code,
    look_at_evidence,
    look_at_port,
    look_at_torch,
)
from sealift.cli.ahead.planned import require_leaves
from sealift.cli.judging import equip_from, wall_clock
from sealift.cli.roles import require_party
from sealift.cli.roles.attester import evidence_places
from sealift.cli.roles.runfolder import require_free
from sealift.cli.train import owners_keys, require_development, require_train
from sealift.cli.train.travel import accelerators_here, require_keys
from sealift.crypto.identity import load_identity
from sealift.data.schedule.memory import free_memory_bytes
from sealift.data.schedule.visits import choose_buffer
from sealift.events import discard
from sealift.release.agreement.signed import load_verified
from sealift.release.files import read_secret_line
from sealift.train.job.rolesetup import RoleSetup
from sealift.train.job.settings import check_job, parse_address, read_job
from sealift.train.plans import PLANS
from sealift.train.plans.local import opened_tables


def dry_run(args: argparse.Namespace) -> int:
    """Say what would be; the exit code."""
    operator = _Operator(args)
    operator.look()
    dry = of_job(operator.job, operator.agreed.agreement, operator.checks)
    return dry.show(as_json=args.json)


class _Operator:
    """What `sealift train` starts from, and what was found wrong with it."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.job = read_job(args.job)
        self.agreed = load_verified(Path(self.job.agreement))
        self.checks = Checks()

    def look(self) -> None:
        """At everything that the command and its processes check before they start."""
        agreement, look = self.agreed.agreement, self.checks.look
        look("agreement", self._look_at_time)
        look("plan", lambda: require_train(PLANS[self.job.plan]))
        look("job", self._look_at_job)
        look("code", lambda: look_at_code(self.job, agreement))
        if PLANS[self.job.plan].roles:
            self._look_at_roles()
        else:
            look("level", lambda: require_development(self.agreed))
            look("data", self._look_at_tables)
        look("output", lambda: require_leaves(agreement, self.job.settings))
        look("place", self._look_at_place)
        look("torch", look_at_torch)

    def _look_at_roles(self) -> None:
        look = self.checks.look
        look("keys", self._look_at_keys)
        if accelerators_here(self.agreed.agreement):
            look("evidence", self._look_at_evidence)
            look("memory", self._look_at_memory)
        given = self.args.orchestrator
        address = parse_address(given) if given else self.job.address
        look("port", lambda: look_at_port(address))

    def _look_at_time(self) -> str:
        self.agreed.agreement.require_time(wall_clock())
        return "signed, and in its time"

    def _look_at_job(self) -> str:
        check_job(self.job, self.agreed)
        return "what it asks for is agreed"

    def _look_at_keys(self) -> str:
        here = accelerators_here(self.agreed.agreement)
        require_keys(self.args, attester=bool(here))
        setup = self._setup(self.args.key[0], self.args.passphrase_file[0])
        require_party(setup, self.agreed.agreement.operator, "orchestrator")
        return "the operator's"

    def _look_at_evidence(self) -> str:
        args = self.args
        if not (args.attester_key and args.attester_passphrase_file):
            return Unknown("no --attester-key")  # `keys` refuses that
        setup = self._setup(args.attester_key, args.attester_passphrase_file)
        return look_at_evidence(setup, evidence_places(args))

    def _setup(self, key: Path, passphrase: Path) -> RoleSetup:
        args, job = self.args, self.job
        return RoleSetup(
            job=job,
            folder=args.job.resolve().parent,
            agreement=equip_from(args, self.agreed),
            identity=load_identity(key, read_secret_line(passphrase)),
            sink=discard,
            address=job.address,
        )

    def _look_at_memory(self) -> str:
        resources, terms = self.agreed.agreement.resources, self.job.settings.visits
        return choose_buffer(resources, terms, free_memory_bytes()).why

    def _look_at_tables(self) -> str:
        """Every owner's, by the keys of their vaults."""
        agreement = self.agreed.agreement
        with ExitStack() as stack:
            keys = owners_keys(self.args, self.agreed, stack)
            stack.enter_context(opened_tables(agreement, self.args.sealed, keys))
        return f"{', '.join(keys)}: as agreed"

    def _look_at_place(self) -> str:
        place = self.args.output or Path(self.job.output)
        require_free(place)
        return str(place)
