"""`sealift host RECIPE --dry-run`: what a host can know before it invites anybody."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from sealift.cli.ahead import looks
from sealift.cli.ahead.dryrun import (
    BROKER,
    ORCHESTRATOR,
    RANK,
    UNMEASURED,
    Checks,
    Unknown,
    show,
)
from sealift.cli.console import say
from sealift.codec import parse_toml
from sealift.crypto.identity import create_identity
from sealift.data.schema.document import load_schema
from sealift.errors import UsageError
from sealift.events import wall_clock
from sealift.ids import check_name
from sealift.meet.declaration import (
    declaration_of,
    demand_dialable,
    invitations_for,
    job_of,
    measures_of,
    try_recipe,
)
from sealift.meet.folder import BUNDLES
from sealift.meet.invitation import HOST, Invitation
from sealift.meet.proposal import proposed_graph
from sealift.meet.state import MeetingState
from sealift.meet.terms import Declaration, proposed_agreement
from sealift.release.agreement import Agreement
from sealift.release.agreement.explain import explain
from sealift.release.agreement.phrases import count
from sealift.train.job.settings import parse_address, parse_job
from sealift.train.loop.tasks import LOSS, Rehearsal
from sealift.travel.settings import TrainingSettings

STEPS: Final = 5  # of the rehearsal


def dry_run(args: argparse.Namespace) -> int:
    """Say what would be; the exit code."""
    with TemporaryDirectory() as folder:
        hosting, checks = _Hosting(args, Path(folder) / BUNDLES["graph"]), Checks()
        checks.look("invited", hosting.invite)
        checks.look("recipe", hosting.declare)
        checks.look("step", hosting.rehearse)
        checks.look("graph", hosting.export)
        checks.look("port", lambda: looks.look_at_port(parse_address(args.listen)))
        checks.look("torch", looks.look_at_torch)
        return show(hosting.said, checks)


class _Hosting:
    """A meeting that is not called."""

    def __init__(self, args: argparse.Namespace, graph: Path) -> None:
        self.args, self._graph = args, graph
        self._identity = create_identity(HOST)  # forgotten when the command ends
        self._invited: list[Invitation] = []
        self._proposed: Agreement | None = None
        self._files: dict[str, bytes] = {}
        self._training = TrainingSettings()
        self._tried: Rehearsal | None = None
        self._operations = 0

    @property
    def said(self) -> dict[str, Iterator[str]]:
        """What would be."""
        return {"runs": self._runs(), "terms": self._terms(), "work": self._work()}

    def invite(self) -> str:
        """Those of the command line, or of the meeting that lies here.

        Raises:
            UsageError: ``nobody-invited``, ``no-address``.
            RefusedError: ``invitation-expired``.
        """
        names = [check_name(each, what="party name") for each in self.args.invite]
        book = Path("meeting.db")
        if book.exists():
            with closing(MeetingState.open(book)) as meeting:
                self._invited = [each.invitation for each in meeting.seats()]
        elif not names:
            raise UsageError("nobody is invited", code="nobody-invited")
        else:
            address, days = self.args.address or self.args.listen, self.args.days
            demand_dialable(address)
            self._invited = invitations_for(
                self._identity, names, address=address, days=days
            )
        self._invited[0].require_in_time(wall_clock())
        return ", ".join(each.name for each in self._invited)

    def declare(self) -> str:
        """What the recipe's folder says; raises as the command does."""
        if not self._invited:
            return Unknown("not checked: nobody is invited")
        return self._declare((LOSS,), None).code.digest.to_text()

    def _declare(self, measures: tuple[str, ...], graph: Path | None) -> Declaration:
        declared, self._files = declaration_of(
            self.args.recipe, self._invited, self._identity, measures, graph=graph
        )
        self._proposed = proposed_agreement(declared, ())
        plain = parse_toml(declared.job.encode(), source="job.toml")
        self._training = parse_job(plain).training
        return declared

    def rehearse(self) -> str:
        """Test the host's own recipe on random rows; raises as `sealift try`."""
        if self._proposed is None or find_spec("torch") is None:
            return Unknown("not tested")
        schema = load_schema(self.args.recipe / "schema.toml")
        self._tried = try_recipe(
            self.args.recipe,
            self._files,
            schema,
            self._training,
            steps=STEPS,
            tell=say,
        )
        self._declare(measures_of(self._tried), None)
        return f"{STEPS} steps on random rows"

    def export(self) -> str:
        """Write the recipe down as a graph, as the command would; raises as it does."""
        if self._tried is None:
            return Unknown("not tested")
        names = [each.name for each in self._invited]
        address = self.args.address or self.args.listen
        job, folder = job_of(self.args.recipe, names, address), self._graph
        counts = proposed_graph(
            self.args.recipe, folder, job, self._tried, steps=STEPS, tell=say
        )
        if counts is None:
            return "the recipe cannot be a graph: it runs as a program"
        self._operations = sum(counts.values())
        self._declare(measures_of(self._tried), folder)
        return f"a graph of {self._operations:,} tensor operations"

    def _runs(self) -> Iterator[str]:
        yield f"{HOST}: the meeting, at {self.args.listen}, until all parties have signed"
        yield f"{HOST}: {ORCHESTRATOR}, at the same address"
        for each in self._invited:
            yield f"{each.name}: `sealift join`, which asks, and compares the table on that machine"
            yield f"{each.name}: {BROKER}"
            yield f"{each.name}: {RANK}"

    def _terms(self) -> Iterator[str]:
        """What each party is asked, here as the first one reads it."""
        if self._proposed is not None:
            first = self._invited[0].name
            yield f"Each party reads this about itself. This is what {first} reads:"
            said = explain(
                self._proposed, first, sealed=False, operations=self._operations
            )
            yield from (each.text for each in said)

    def _work(self) -> Iterator[str]:
        rows = self._training.batch_rows
        step_s = self._tried.step_s if self._tried is not None else 0.0
        yield (
            f"{count(self._training.epochs, 'epoch')}, in steps of {rows:,} rows, all owners in "
            "parallel; the number of rows is known when they have joined"
        )
        yield (
            UNMEASURED
            if not step_s
            else (
                f"a step with random rows took {step_s * 1000:.3g} ms on this machine: about "
                f"{rows / step_s:,.0f} rows/s on a machine like this, without the network"
            )
        )
