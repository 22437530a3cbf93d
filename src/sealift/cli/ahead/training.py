"""`sealift train JOB --dry-run`: what the operator can know before anybody is asked."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path

from sealift.cli.ahead import looks
from sealift.cli.ahead.dryrun import Checks, Unknown, show_job
from sealift.cli.judging import equip_from
from sealift.cli.roles import require_party
from sealift.cli.roles.attester import evidence_places
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
from sealift.train.output.runfolder import require_free
from sealift.train.plans import PLANS
from sealift.train.plans.local import opened_tables


def dry_run(args: argparse.Namespace) -> int:
    """Say what would be; the exit code."""
    operator = _Operator(args)
    operator.look()
    agreement = operator.agreed.agreement
    return show_job(operator.job, agreement, operator.checks, as_json=args.json)


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
        plan = PLANS[self.job.plan]
        look("agreement", lambda: looks.look_at_time(agreement))
        look("plan", lambda: require_train(plan))
        look("job", lambda: check_job(self.job, self.agreed))
        look("code", lambda: looks.look_at_code(self.job, agreement))
        if plan.roles:
            self._look_at_roles()
        else:
            look("level", lambda: require_development(self.agreed))
            look("data", self._look_at_tables)
        place = self.args.output or Path(self.job.output)
        look("place", lambda: require_free(place))
        look("torch", looks.look_at_torch)
        if not plan.roles or accelerators_here(agreement):
            look("device", lambda: looks.look_at_device(self.job))

    def _look_at_roles(self) -> None:
        look = self.checks.look
        look("keys", self._look_at_keys)
        if accelerators_here(self.agreed.agreement):
            look("evidence", self._look_at_evidence)
            look("memory", self._look_at_memory)
        given = self.args.orchestrator
        address = parse_address(given) if given else self.job.address
        look("port", lambda: looks.look_at_port(address))

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
        return looks.look_at_evidence(setup, evidence_places(args))

    def _setup(self, key: Path, passphrase: Path) -> RoleSetup:
        job, folder = self.job, self.args.job.resolve().parent
        identity = load_identity(key, read_secret_line(passphrase))
        agreed = equip_from(self.args, self.agreed)
        return RoleSetup(job, folder, agreed, identity, discard, job.address)

    def _look_at_memory(self) -> str:
        resources, terms = self.agreed.agreement.resources, self.job.settings.visits
        return choose_buffer(resources, terms, free_memory_bytes()).why

    def _look_at_tables(self) -> str:
        """Every owner's, by the keys of their vaults."""
        with ExitStack() as stack:
            keys = owners_keys(self.args, self.agreed, stack)
            tables = opened_tables(self.agreed.agreement, self.args.sealed, keys)
            stack.enter_context(tables)
        return ", ".join(keys)
