"""`sealift join JOB --check` and `--dry-run`: what an owner can know before the day."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from sealift.cli.ahead import looks
from sealift.cli.ahead.dryrun import Checks, Unknown, show_job
from sealift.cli.ahead.looks import Network
from sealift.cli.console import unlock
from sealift.cli.judging import equip_from
from sealift.cli.roles import require_data_owner
from sealift.cli.roles.attester import evidence_places
from sealift.cli.roles.join import require_passphrase_file, require_rows_at_home
from sealift.data.schema.card import schema_of
from sealift.data.schema.schema import say_categories
from sealift.events import discard, wall_clock
from sealift.release.agreement.signed import load_verified
from sealift.train.job.heldfiles import check_keys, load_held
from sealift.train.job.rolesetup import RoleSetup, own_enroller, require_role
from sealift.train.job.settings import check_job, parse_address, read_job
from sealift.train.plans import PlanRole

_NO_KEY: Final = Unknown("not checked: the identity key could not be opened")


def check(args: argparse.Namespace) -> int:
    """Look at everything, and say it line by line; the exit code."""
    owner = _Owner(args)
    owner.look_at_home()
    network = Network(owner.address)
    owner.checks.look("reach", network.reach)
    owner.checks.look("clock", lambda: network.compare_clocks(wall_clock()))
    return owner.checks.show()


def dry_run(args: argparse.Namespace) -> int:
    """Say what would be; the exit code."""
    owner = _Owner(args)
    owner.look_at_home()
    agreement = owner.agreed.agreement
    return show_job(owner.job, agreement, owner.checks)


class _Owner:
    """What an owner has at home, and what was found wrong with it."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.job = read_job(args.job)
        self.agreed = load_verified(Path(self.job.agreement))
        at_home = self.job.plan == "ddp" and not args.holder_only
        self.role: PlanRole = "accelerator" if at_home else "holder"
        given = args.orchestrator
        self.address = parse_address(given) if given else self.job.address
        self.checks = Checks()
        self._setup: RoleSetup | None = None
        self._categories: dict[str, None] = {}  # lines, each once

    def look_at_home(self) -> None:
        """All that is known without asking anybody."""
        look = self.checks.look
        look("agreement", lambda: looks.look_at_time(self.agreed.agreement))
        look("job", self._look_at_job)
        look("keys", self._look_at_keys)
        look("data", self._look_at_tables)
        for line in self._categories:
            look("labels", lambda line=line: line)  # type: ignore[misc]
        look("code", self._look_at_code)
        look("evidence", self._look_at_evidence)
        if self.role == "accelerator":
            look("torch", looks.look_at_torch)
            look("device", lambda: looks.look_at_device(self.job))

    def _look_at_job(self) -> str:
        check_job(self.job, self.agreed)
        require_role(self.job.plan, self.role)
        return f"{self.job.name}, plan {self.job.plan}: the agreement allows it"

    def _look_at_keys(self) -> str:
        if not self.args.holder_only:
            require_passphrase_file(self.args)
        identity = unlock(self.args, self.args.key)
        agreed = equip_from(self.args, self.agreed, own_enroller(self.agreed, identity))
        folder = self.args.job.resolve().parent
        setup = RoleSetup(self.job, folder, agreed, identity, discard, self.address)
        require_data_owner(setup, self.role)
        if self.role == "accelerator":
            require_rows_at_home(setup)
        self._setup = setup
        return f"the identity key opens, and is {identity.name}'s in the agreement"

    def _look_at_tables(self) -> str:
        if self._setup is None:
            return _NO_KEY
        with ExitStack() as stack:
            held = load_held(self._setup, self.args.sealed, stack)
            if not self.args.holder_only:
                check_keys(self._setup, self.args.vault, held)
        fields = [f for each in held.values() for f in schema_of(each.resource).fields]
        numbered = (each for each in fields if each.cells.categories)
        self._categories = dict.fromkeys(map(say_categories, numbered))
        return f"{', '.join(held)}: their cards are the agreed ones, and the vault has the keys"

    def _look_at_code(self) -> str:
        if self.role == "holder" and not Path(self.job.bundle).exists():
            return Unknown("it is not on this machine, which does not run it")
        return looks.look_at_code(self.job, self.agreed.agreement)

    def _look_at_evidence(self) -> str:
        if self.role == "holder":
            return Unknown("not needed: this machine only verifies evidence of others")
        if self._setup is None:
            return _NO_KEY
        return looks.look_at_evidence(self._setup, evidence_places(self.args))
