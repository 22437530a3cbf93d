"""What has happened so far in a run, from the events of its processes. Pure state.

The screen draws it while it grows, the checks and the report read it at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sealift.train.eventlines import RoleEvent

TRANSFER_PHASES: Final = ("handshake", "load")


@dataclass(slots=True, kw_only=True)
class VisitSeen:
    """One visit.

    Attributes:
        number: Of its fresh visit key: its key epoch.
        began_s: When it was offered, monotonic seconds.
        marks: (phase, when it began), in order.
        phases_s: Seconds by phase, by the accelerator's clock.
        reason: Stable name of why it failed, or empty.
    """

    visit: str
    number: int
    epoch: int
    holder: str
    purpose: str
    rows: int
    began_s: float
    ended_s: float = 0.0
    marks: list[tuple[str, float]] = field(default_factory=list)
    phases_s: dict[str, float] = field(default_factory=dict)
    outcome: str = ""
    reason: str = ""
    line: str = ""
    sealed_bytes: int = 0
    scrubbed_bytes: int = 0
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def transfer_s(self) -> float:
        """Seconds in which the cargo came in: handshake and load."""
        return sum(self.phases_s.get(name, 0.0) for name in TRANSFER_PHASES)

    @property
    def verified(self) -> bool:
        """Trained or evaluated, scrubbed, read back."""
        return self.outcome == "verified"


@dataclass(slots=True)
class AttackSeen:
    """One attack and what became of it.

    Attributes:
        name: One of ``hostile.TRIES``.
        holder: Who tried.
        visit: In which visit.
        reason: Stable name of the accelerator's refusal, empty while there is none.
    """

    name: str
    holder: str
    visit: str
    reason: str = ""
    line: str = ""
    scrubbed_bytes: int = 0


@dataclass(slots=True)
class Progress:
    """A run so far.

    Attributes:
        planned: Visits that the schedule asks for.
        on_relay: Processes registered with the orchestrator.
        gathered_s: When all roles were there, monotonic seconds.
    """

    planned: int
    on_relay: list[str] = field(default_factory=list)
    gathered_s: float = 0.0
    ready_s: float = 0.0
    level: str = ""
    keys: int = 0
    visits: list[VisitSeen] = field(default_factory=list)
    attacks: list[AttackSeen] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    _tried: dict[str, AttackSeen] = field(default_factory=dict)

    @property
    def current(self) -> VisitSeen | None:
        """The visit that goes on, or the last one."""
        return self.visits[-1] if self.visits else None

    @property
    def verified(self) -> list[VisitSeen]:
        """Every visit that was scrubbed and read back after its work."""
        return [visit for visit in self.visits if visit.verified]

    @property
    def trained(self) -> list[VisitSeen]:
        """Every training visit that counts."""
        return [visit for visit in self.verified if visit.purpose == "train"]

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
            case "job.ready":
                self.ready_s, self.level = event.t_s, event.text("level")
            case "release.collected":
                self.keys += 1
            case "visit.skipped":
                self.skipped.append(f"{event.text('holder')}: {event.text('line')}")
            case "hostile.tries":
                self._tries(event)
            case _:
                self._take_visit(event)

    def _take_visit(self, event: RoleEvent) -> None:
        visit = self.current
        if event.kind == "visit.offered":
            self._offered(event)
        elif event.kind == "visit.phase" and visit is not None:
            visit.marks.append((event.text("phase"), event.t_s))
        elif event.kind == "visit.ended" and visit is not None:
            self._ended(event, visit)

    def _offered(self, event: RoleEvent) -> None:
        fields = event.fields
        self.visits.append(
            VisitSeen(
                visit=event.text("visit"),
                number=int(fields["number"]),
                epoch=int(fields["epoch"]),
                holder=event.text("holder"),
                purpose=event.text("purpose"),
                rows=int(fields["rows"]),
                began_s=event.t_s,
            )
        )

    def _ended(self, event: RoleEvent, visit: VisitSeen) -> None:
        fields = event.fields
        visit.ended_s = event.t_s
        visit.outcome, visit.reason = event.text("outcome"), event.text("reason")
        visit.line = event.text("line")
        visit.sealed_bytes = int(fields["sealed_bytes"])
        visit.scrubbed_bytes = int(fields["scrubbed_bytes"])
        visit.phases_s = _named(fields, suffix="_s")
        visit.metrics = _named(fields, prefix="metric.")
        self._settle(visit)

    def _tries(self, event: RoleEvent) -> None:
        holder = event.process.removeprefix("holder-")
        attack = AttackSeen(event.text("attack"), holder, event.text("visit"))
        self.attacks.append(attack)
        self._tried[attack.visit] = attack
        for visit in self.visits:  # the processes' lines come in any order
            if visit.visit == attack.visit and visit.outcome:
                self._settle(visit)

    def _settle(self, visit: VisitSeen) -> None:
        attack = self._tried.get(visit.visit)
        if attack is not None and not visit.verified:
            attack.reason, attack.line = visit.reason, visit.line
            attack.scrubbed_bytes = visit.scrubbed_bytes


def _named(
    fields: Mapping[str, Any], *, prefix: str = "", suffix: str = ""
) -> dict[str, float]:
    """The number fields with a prefix or suffix, without it."""
    return {
        name.removeprefix(prefix).removesuffix(suffix): float(value)
        for name, value in fields.items()
        if name.startswith(prefix) and name.endswith(suffix)
    }
