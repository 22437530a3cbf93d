"""What has happened so far in a run, from the events of its processes. Pure state.

The screen draws it while it grows, the checks and the report read it at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sealift.events import metrics_of
from sealift.train.job.roleprocesses import RoleEvent

PHASES: Final = (
    "offer", "handshake", "load", "check", "wait", "train", "scrub", "receipt",
)  # fmt: skip
TRANSFER_PHASES: Final = ("handshake", "load", "check")


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time, in monotonic seconds."""

    phase: str
    began_s: float
    ended_s: float

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.ended_s - self.began_s


@dataclass(slots=True, kw_only=True)
class VisitSeen:
    """One visit.

    Attributes:
        number: Of its fresh visit key: its key epoch.
        position: Of its group in the plan; visits of one group are worked on together.
        began_s: When it was offered, monotonic seconds.
        marks: (phase, when it began), in order.
        phases_s: Seconds by phase, by the accelerator's clock.
        reason: Stable name of why it failed, or empty.
        curve: Values of the loss within the visit, as the output rule lets them out.
    """

    visit: str
    number: int
    epoch: int
    holder: str
    purpose: str
    rows: int
    began_s: float
    position: int = 0
    ended_s: float = 0.0
    marks: list[tuple[str, float]] = field(default_factory=list)
    phases_s: dict[str, float] = field(default_factory=dict)
    outcome: str = ""
    reason: str = ""
    line: str = ""
    sealed_bytes: int = 0
    scrubbed_bytes: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    curve: tuple[float, ...] = ()

    @property
    def under_way(self) -> bool:
        """Offered and not ended."""
        return not self.outcome

    @property
    def spans(self) -> list[Span]:
        """Its phases in order, from the offer to its end; empty while it goes on."""
        if self.under_way:
            return []
        begins = [("offer", self.began_s), *self.marks]
        ends = [began for _, began in self.marks] + [self.ended_s]
        return [
            Span(phase, began, ended)
            for (phase, began), ended in zip(begins, ends, strict=True)
        ]

    @property
    def transfer_s(self) -> float:
        """Seconds in which the cargo came in and was checked."""
        return sum(self.phases_s.get(name, 0.0) for name in TRANSFER_PHASES)

    @property
    def verified(self) -> bool:
        """Trained or evaluated, scrubbed, read back."""
        return self.outcome == "verified"


@dataclass(slots=True)
class AttackSeen:
    """One attack and what became of it.

    Attributes:
        name: One of ``TRIES`` of ``worlds.holders`` or ``worlds.cheating``.
        holder: Who tried.
        visit: In which visit, or in which step of training.
        reason: Stable name of the accelerator's refusal, empty while there is none.
        kept: The file with what a server signed.
    """

    name: str
    holder: str
    visit: str
    reason: str = ""
    line: str = ""
    scrubbed_bytes: int = 0
    kept: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointSeen:
    """A sealed checkpoint, or one that could not be made.

    Attributes:
        at_s: When it was told, monotonic seconds.
        seconds: For sealing and recording it.
        missed: Why there is none, or empty.
    """

    number: int
    at_s: float
    sealed_bytes: int = 0
    seconds: float = 0.0
    missed: str = ""


@dataclass(frozen=True, slots=True)
class RoundSeen:
    """One pass that all ranks of a group have done.

    Attributes:
        metrics: Means over all ranks' rows, by the output rule.
    """

    purpose: str
    epoch: int
    rows: int
    seconds: float
    metrics: dict[str, float]


@dataclass(slots=True)
class Progress:
    """A run so far.

    Attributes:
        planned: Visits that the schedule asks for.
        on_relay: Processes registered with the orchestrator.
        gathered_s: When all roles were there, monotonic seconds.
        ready_s: When the accelerator had every key.
        sandbox: What keeps the recipe in, as the accelerator told it.
        buffer_bytes: Largest cargo of one visit.
        buffer_why: Why it is that long.
    """

    planned: int
    on_relay: list[str] = field(default_factory=list)
    gathered_s: float = 0.0
    ready_s: float = 0.0
    level: str = ""
    sandbox: str = ""
    buffer_bytes: int = 0
    buffer_why: str = ""
    keys: int = 0
    visits: list[VisitSeen] = field(default_factory=list)
    attacks: list[AttackSeen] = field(default_factory=list)
    checkpoints: list[CheckpointSeen] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    rounds: list[RoundSeen] = field(default_factory=list)
    _by_name: dict[str, VisitSeen] = field(default_factory=dict)
    _tried: dict[str, AttackSeen] = field(default_factory=dict)

    def visit(self, name: str) -> VisitSeen | None:
        """The visit of that name, if it was offered."""
        return self._by_name.get(name)

    def last_of(self, holder: str) -> VisitSeen | None:
        """The visit to a holder that goes on, or its last one."""
        own = [visit for visit in self.visits if visit.holder == holder]
        under_way = [visit for visit in own if visit.under_way]
        return next(iter(under_way or own[-1:]), None)

    @property
    def verified(self) -> list[VisitSeen]:
        """Every visit that was scrubbed and read back after its work."""
        return [visit for visit in self.visits if visit.verified]

    @property
    def trained(self) -> list[VisitSeen]:
        """Every training visit that counts."""
        return [visit for visit in self.verified if visit.purpose == "train"]

    @property
    def measured(self) -> list[VisitSeen]:
        """Every visit to held-out rows that counts."""
        return [visit for visit in self.verified if visit.purpose == "heldout"]

    @property
    def sealed_bytes(self) -> int:
        """Ciphertext that crossed so far."""
        return sum(visit.sealed_bytes for visit in self.visits)

    @property
    def transfer_s(self) -> float:
        """Seconds spent on bringing cargo so far."""
        return sum(visit.transfer_s for visit in self.visits)

    def take(self, event: RoleEvent) -> None:
        """Take note of an event; those of no interest change nothing."""
        match event.kind:
            case "relay.registered":
                self.on_relay.append(event.text("name"))
            case "job.gathered":
                self.gathered_s = event.t_s
            case "job.ready" | "rank.ready":
                self._ready(event)
            case "round.ended":
                self._round(event)
            case "release.collected":
                self.keys += 1
            case "visit.skipped":
                self.skipped.append(f"{event.text('holder')}: {event.text('line')}")
            case "checkpoint.made" | "checkpoint.sealed" | "checkpoint.missed":
                self._checkpoint(event)
            case "hostile.tries":
                self._tries(event)
            case "shares.tries" | "shares.wrong":
                self._answer(event)
            case _:
                self._take_visit(event)

    def _take_visit(self, event: RoleEvent) -> None:
        visit = self.visit(event.text("visit"))
        if event.kind == "visit.offered":
            self._offered(event)
        elif event.kind == "visit.phase" and visit is not None:
            visit.marks.append((event.text("phase"), event.t_s))
        elif event.kind == "visit.ended" and visit is not None:
            self._ended(event, visit)

    def _ready(self, event: RoleEvent) -> None:
        self.ready_s, self.level = event.t_s, event.text("level")
        self.sandbox, self.buffer_why = event.text("sandbox"), event.text("why")
        self.buffer_bytes = int(event.fields.get("buffer_bytes", 0))

    def _round(self, event: RoleEvent) -> None:
        fields = event.fields
        self.rounds.append(
            RoundSeen(
                purpose=event.text("purpose"),
                epoch=int(fields["epoch"]),
                rows=int(fields["rows"]),
                seconds=float(fields["seconds"]),
                metrics=metrics_of(fields),
            )
        )

    def _checkpoint(self, event: RoleEvent) -> None:
        fields = event.fields
        spent = [fields.get(name, 0.0) for name in ("seconds", "seal_s", "record_s")]
        sealed = fields.get("sealed_bytes", fields.get("bytes", 0))
        self.checkpoints.append(
            CheckpointSeen(
                number=int(fields["number"]),
                at_s=event.t_s,
                sealed_bytes=int(sealed),
                seconds=sum(map(float, spent)),
                missed=event.text("line"),
            )
        )

    def _offered(self, event: RoleEvent) -> None:
        fields = event.fields
        visit = VisitSeen(
            visit=event.text("visit"),
            number=int(fields["number"]),
            position=int(fields.get("position", 0)),
            epoch=int(fields["epoch"]),
            holder=event.text("holder"),
            purpose=event.text("purpose"),
            rows=int(fields["rows"]),
            began_s=event.t_s,
        )
        self.visits.append(visit)
        self._by_name[visit.visit] = visit

    def _ended(self, event: RoleEvent, visit: VisitSeen) -> None:
        fields = event.fields
        visit.ended_s = event.t_s
        visit.outcome, visit.reason = event.text("outcome"), event.text("reason")
        visit.line = event.text("line")
        visit.sealed_bytes = int(fields["sealed_bytes"])
        visit.scrubbed_bytes = int(fields["scrubbed_bytes"])
        visit.phases_s = _named(fields, suffix="_s")
        visit.metrics = metrics_of(fields)
        visit.curve = tuple(_named(fields, prefix="curve.").values())  # in their order
        self._settle(visit)

    def _tries(self, event: RoleEvent) -> None:
        holder = event.process.removeprefix("holder-")
        attack = AttackSeen(event.text("attack"), holder, event.text("visit"))
        self.attacks.append(attack)
        self._tried[attack.visit] = attack
        for visit in self.visits:  # the processes' lines come in any order
            if visit.visit == attack.visit and visit.outcome:
                self._settle(visit)

    def _answer(self, event: RoleEvent) -> None:
        """A wrong one, as its server tells it or as it was found: in any order."""
        step = f"step {event.fields['step']}"
        if step not in self._tried:
            self._tried[step] = AttackSeen("", "", step)
            self.attacks.append(self._tried[step])
        attack = self._tried[step]
        if event.kind == "shares.tries":
            attack.name = event.text("attack")
            attack.holder = event.process.removeprefix("server-")
        else:
            attack.reason, attack.line = event.text("code"), event.text("line")
            attack.kept = event.text("kept")

    def _settle(self, visit: VisitSeen) -> None:
        attack = self._tried.get(visit.visit)
        if attack is not None and not visit.verified:
            attack.reason, attack.line = visit.reason, visit.line
            attack.scrubbed_bytes = visit.scrubbed_bytes


def timed_phases(visits: Sequence[VisitSeen]) -> list[str]:
    """Phases that the accelerator timed, the known ones first and in their order."""
    timed = {name for visit in visits for name in visit.phases_s} - {"offer"}
    known = [name for name in PHASES if name in timed]
    return known + sorted(timed - set(PHASES))


def _named(
    fields: Mapping[str, Any], *, prefix: str = "", suffix: str = ""
) -> dict[str, float]:
    """The number fields with a prefix or suffix, without it."""
    return {
        name.removeprefix(prefix).removesuffix(suffix): float(value)
        for name, value in fields.items()
        if name.startswith(prefix) and name.endswith(suffix)
    }
