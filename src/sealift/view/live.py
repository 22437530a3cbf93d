"""A run as it goes on: what its journal told so far, ready to be drawn. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sealift.events import metrics_of
from sealift.train.job.journal import BEGAN, ENDED, FINISHED, STOPPED, JournalEntry
from sealift.train.job.sentences import sentence
from sealift.train.loop.measures import shown_numbers

MAX_KEPT: Final = 200  # lines of each list on the page
_TROUBLE: Final = (
    "accelerator.lost", "baseline.lost", "broker.failed", "checkpoint.missed", "direct.refused",
    "guest.declined", "guest.refused", "holder.failed", "holder.missing", "job.limited",
    "lease.lost",
    "lease.revoked", "lease.silent", "owner.departed", "relay.lost", "relay.refused",
    "release.missing", "role.refused", "shares.refused", "shares.wrong", "state.changed",
    "visit.again", "visit.skipped", "watch.failing",
)  # fmt: skip
_OF_OWNERS: Final = ("holder.measured", "rank.measured", "slice.worked")
WHOSE: Final = ("own", "joint", "alone")
_RELEASED: Final = ("release.granted", "release.collected")
_GATHERING: Final = ("guest.arrived", "guest.brought", "guest.agreed", "role.arrived")


@dataclass(slots=True)
class Inside:
    """Whose rows are being used now."""

    holder: str
    resource: str
    purpose: str
    phase: str
    since_s: float


@dataclass(slots=True)
class LiveRun:
    """What is known of one run; times are seconds since 1970.

    Attributes:
        job: Its name.
        plan: Of the job.
        agreement: Its digest, as text.
        level: As evidence proved it; empty before.
        sandbox: What keeps the recipe in.
        roles: By whom something was told, and how each ended; empty while it goes on.
        present: Who has arrived.
        inside: Visits that go on, by id.
        rows: Of the history: purpose, epoch, owner and numbers of each visit or round.
        working_s: When work on the plan began, or went on; 0 before.
        rows_before: Rows that were there then.
        position: Of the plan's first group that was still to be worked on then.
        buffer_bytes: Of a visit.
        phases_s: Seconds of ended visits, by phase.
        released: Keys that went out or came in: when, what it says.
        refused: Keys that did not: when, what it says, the rule.
        trouble: Whatever else went wrong: when, what it says.
        checkpoints: The last one.
        privacy: Of each table with a privacy budget, what its owner's broker said last:
            spent, left, the budget.
    """

    job: str = ""
    plan: str = ""
    agreement: str = ""
    level: str = ""
    sandbox: str = ""
    began_s: float = 0.0
    last_s: float = 0.0
    roles: dict[str, str] = field(default_factory=dict)
    endings: dict[str, str] = field(default_factory=dict)
    present: dict[str, float] = field(default_factory=dict)
    inside: dict[str, Inside] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    working_s: float = 0.0
    rows_before: int = 0
    position: int = 0
    buffer_bytes: int = 0
    sealed_bytes: int = 0
    scrubbed_bytes: int = 0
    phases_s: dict[str, float] = field(default_factory=dict)
    released: list[tuple[float, str]] = field(default_factory=list)
    refused: list[tuple[float, str, str]] = field(default_factory=list)
    trouble: list[tuple[float, str]] = field(default_factory=list)
    receipts: int = 0
    checkpoints: int = 0
    privacy: dict[str, tuple[str, str, str]] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Whether every role here that began has ended."""
        return bool(self.roles) and all(self.roles.values())

    @property
    def outcome(self) -> str:
        """``finished``, the first error's name, or empty while it goes on."""
        if not self.is_over:
            return ""
        ends = set(self.roles.values())
        failed = sorted(ends - {FINISHED, STOPPED})
        # A broker beside a rank is stopped by it once all is done.
        return next(iter(failed), FINISHED if FINISHED in ends else STOPPED)

    @property
    def units(self) -> int:
        """What was done since then: rounds of all ranks, else visits or slices."""
        rows = self.rows[self.rows_before :]
        if self.plan == "ddp":
            return len({(row["purpose"], row["epoch"]) for row in rows})
        return len(rows)

    def left_s(self, units: int) -> float | None:
        """About how long so many units will take, judged by those since then."""
        if not self.units or units <= 0 or not self.working_s:
            return None
        return (self.last_s - self.working_s) / self.units * units

    def take(self, told: JournalEntry) -> None:
        """One line of the journal."""
        self.last_s = told.at_s
        kind, fields = told.kind, told.fields
        if kind == BEGAN:
            self._begin(told)
        elif kind == ENDED:
            self.roles[told.by] = str(fields.get("outcome", "ended"))
            self.endings[told.by] = str(fields.get("line", ""))
        elif kind in _RELEASED:
            self._list(self.released, (told.at_s, sentence(kind, fields)))
        elif kind == "release.refused":
            rule = str(fields.get("rule", ""))
            self._list(self.refused, (told.at_s, sentence(kind, fields), rule))
        elif kind in _TROUBLE:
            self._list(self.trouble, (told.at_s, sentence(kind, fields)))
        elif kind in _GATHERING:
            self.present.setdefault(str(fields.get("name", "")), told.at_s)
        elif kind == "privacy.spent":
            spent, left, budget = (
                str(fields[e]) for e in ("epsilon", "left", "budget")
            )
            self.privacy[str(fields["resource"])] = (spent, left, budget)
        else:
            self._take_work(told)

    def _begin(self, told: JournalEntry) -> None:
        self.began_s = self.began_s or told.at_s
        self.roles[told.by] = ""
        for name in ("job", "plan", "agreement"):
            setattr(self, name, str(told.fields.get(name, getattr(self, name))))

    def _list(self, lines: list[Any], line: tuple[Any, ...]) -> None:
        lines.append(line)
        del lines[:-MAX_KEPT]

    def _take_work(self, told: JournalEntry) -> None:
        fields = told.fields
        if told.kind in _OF_OWNERS and "orchestrator" in self.roles:
            return  # which tells the same of everybody
        match told.kind:
            case "job.ready" | "rank.ready":
                self.level = str(fields["level"])
                self.sandbox = str(fields["sandbox"])
                self._start(told)
            case "visit.offered" | "visit.phase":
                self._enter(told)
            case "visit.ended":
                self.inside.pop(str(fields["visit"]), None)
                self._end_visit(told)
            case "round.ended" | "local.slice" | "holder.measured":
                self._row(told, float(fields.get("seconds", 0.0)))
            case "slice.worked":
                self._row(told, 0.0)
            case "rank.measured":
                self._compare(told)
            case "holder.receipt":
                self.receipts += 1
            case "checkpoint.sealed" | "checkpoint.committed":
                self.checkpoints = int(fields["number"])

    def _start(self, told: JournalEntry) -> None:
        """The plan is worked on from here: from its beginning, or a checkpoint."""
        self.position = int(told.fields.get("position", 0))
        if (
            not self.position
        ):  # whatever was there before was killed, and is another run's
            self.rows.clear()
            self.phases_s.clear()
            self.sealed_bytes = self.scrubbed_bytes = 0
        self.working_s, self.rows_before = told.at_s, len(self.rows)
        self.buffer_bytes = int(told.fields.get("buffer_bytes", 0))
        self.inside.clear()

    def _enter(self, told: JournalEntry) -> None:
        fields, visit = told.fields, str(told.fields["visit"])
        known = self.inside.get(visit)
        if told.kind == "visit.offered":
            self.inside[visit] = Inside(
                str(fields["holder"]),
                str(fields["resource"]),
                str(fields["purpose"]),
                "offered",
                told.at_s,
            )
        elif known is not None:
            known.phase = str(fields["phase"])

    def _end_visit(self, told: JournalEntry) -> None:
        fields = told.fields
        self.sealed_bytes += int(fields.get("sealed_bytes", 0))
        self.scrubbed_bytes += int(fields.get("scrubbed_bytes", 0))
        for name, value in fields.items():
            if name.endswith("_s") and isinstance(value, (int, float)):
                phase = name.removesuffix("_s")
                self.phases_s[phase] = self.phases_s.get(phase, 0.0) + float(value)
        if fields["outcome"] == "verified":
            self._row(told, 0.0)
        else:
            self._list(self.trouble, (told.at_s, sentence(told.kind, fields)))

    def _row(self, told: JournalEntry, seconds: float) -> None:
        fields = told.fields
        self.working_s = self.working_s or told.at_s - seconds
        numbers = shown_numbers(metrics_of(fields))
        if told.kind == "slice.worked":  # of one's own slice, by their plain names
            numbers = {n: v for n, v in fields.items() if isinstance(v, float)}
        self.rows.append(
            {
                "purpose": str(fields["purpose"]),
                "epoch": int(fields["epoch"]) + 1 if "epoch" in fields else None,
                "owner": str(fields.get("holder", "")),
                "table": str(fields.get("resource", "")),
                "rows": int(fields.get("rows", 0)),
                **numbers,
            }
        )

    def _compare(self, told: JournalEntry) -> None:
        """An owner's own numbers, everybody's, and those of its own rows alone: a line each."""
        numbers = metrics_of(told.fields)
        for each in WHOSE:
            own = {
                f"metric.{name.removeprefix(f'{each}.')}": value
                for name, value in numbers.items()
                if name.startswith(f"{each}.")
            }
            plain = {n: v for n, v in told.fields.items() if n.partition(".")[1] == ""}
            holder = plain["holder"] if each == "own" else each
            fields = {**plain, **own, "holder": holder}
            if own:
                self._row(replace(told, fields=fields), 0.0)


def replay(told: Iterable[JournalEntry], run: LiveRun | None = None) -> LiveRun:
    """The last run of a journal: one begins with the first role after all have ended."""
    run = run or LiveRun()
    for each in told:
        if each.kind == BEGAN and run.is_over:
            run = LiveRun()
        run.take(each)
    return run
