"""`sealift host RECIPE --dry-run`: what a host can know before it invites anybody."""

from __future__ import annotations

import argparse
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from sealift.cli.ahead.checks import Checks, Unknown
from sealift.cli.ahead.dryrun import DryRun
from sealift.cli.ahead.looks import look_at_port, look_at_torch
from sealift.cli.ahead.planned import BROKER, ORCHESTRATOR, RANK, UNMEASURED
from sealift.cli.judging import wall_clock
from sealift.cli.meeting.host import declaration_of, invitations_for
from sealift.cli.meeting.question import tell_declared
from sealift.cli.train.rehearse import rehearse_all
from sealift.codec import parse_toml
from sealift.crypto.identity import create_identity
from sealift.data.schema.document import load_schema
from sealift.errors import UsageError
from sealift.ids import check_name
from sealift.meet.book import Book
from sealift.meet.invitation import HOST, Invitation
from sealift.meet.terms import Declaration
from sealift.train.job.settings import JobTable, parse_address, parse_job

STEPS: Final = 5  # of the rehearsal


def dry_run(args: argparse.Namespace) -> int:
    """Say what would be; the exit code."""
    hosting = _Hosting(args)
    hosting.look()
    return hosting.dry.show(as_json=False)


class _Hosting:
    """A meeting that is not called."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.checks = args, Checks()
        self._identity = create_identity(HOST)  # forgotten when the command ends
        self._invited: list[Invitation] = []
        self._declared: Declaration | None = None
        self._files: dict[str, bytes] = {}
        self._job: JobTable | None = None
        self._step_s: float | None = None

    def look(self) -> None:
        """At everything that `sealift host` and its job check before they start."""
        look = self.checks.look
        look("invited", self._invite)
        look("recipe", self._declare)
        look("step", self._try)
        look("port", lambda: look_at_port(parse_address(self.args.listen)))
        look("torch", look_at_torch)

    @property
    def dry(self) -> DryRun:
        """What would be."""
        guests = [each.name for each in self._invited]
        calls = f"the meeting, at {self.args.listen}, until all have signed"
        joins = "`sealift join`, which compares its table at home, asks, and signs"
        told = self._declared
        sight = tell_declared(told, guests[0], colour=False) if told else ()
        return DryRun(
            runs={
                HOST: (calls, f"{ORCHESTRATOR}, at the same place"),
                **dict.fromkeys(guests, (joins, BROKER, RANK)),
            },
            sight=tuple(line.strip() for line in sight),
            receives={},
            checks=self.checks,
            work=tuple(self._work()),
        )

    def _invite(self) -> str:
        names = [check_name(each, what="party name") for each in self.args.invite]
        book = Path("meeting.db")
        if book.exists():
            with closing(Book.open(book)) as meeting:
                self._invited = [each.invitation for each in meeting.seats()]
        elif not names:
            raise UsageError("nobody is invited", code="nobody-invited")
        else:
            self._invited = invitations_for(self.args, self._identity, names)
        self._invited[0].require_in_time(wall_clock())
        return ", ".join(each.name for each in self._invited)

    def _declare(self) -> str:
        if not self._invited:
            return Unknown("not looked at: nobody is invited")
        found = declaration_of(self.args, self._invited, self._identity)
        declared, self._files = found
        self._job = parse_job(parse_toml(declared.job.encode(), source="job.toml"))
        self._declared = declared
        return declared.code.digest.to_text()

    def _try(self) -> str:
        """The host's own recipe, on rows that nobody gave."""
        if self._job is None or find_spec("torch") is None:
            return Unknown("not tried")
        training = self._job.training
        given = argparse.Namespace(
            seed=training.seed,
            batch_rows=training.batch_rows,
            threads=training.threads,
            drop_last=training.drop_last,
            rows=training.batch_rows * STEPS,
            steps=STEPS,
            form=None,
        )
        schema = load_schema(self.args.recipe / "schema.toml")
        (tried,) = rehearse_all(given, self._files, "recipe.py", [schema])
        self._step_s = tried.step_s
        return f"{STEPS} steps on synthetic rows"

    def _work(self) -> list[str]:
        if self._job is None:
            return [UNMEASURED]
        training = self._job.training
        lines = [
            f"{training.epochs} epochs, in steps of {training.batch_rows} rows, all owners "
            "side by side; how many rows there are is known when they have come"
        ]
        if self._step_s is None:
            return [*lines, UNMEASURED]
        pace = training.batch_rows / self._step_s
        return [
            *lines,
            f"a step took {self._step_s * 1000:.3g} ms here, on synthetic rows: about "
            f"{pace:.0f} rows a second on a machine like this, besides the network",
        ]
