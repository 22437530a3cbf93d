"""The second act of a rehearsal: a bad act in the host while rows flow, and what follows.

Another job runs under the same agreement, with holders on slow lines. Once rows flow, the guest executes a program
that nobody agreed on. Every owner's broker sees it in the evidence of the next renewal
and revokes the lease; the holders stop. What is told here comes from the holders' own
frames and the brokers' own logs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from sealift.errors import JobError, PeerError
from sealift.lab.demo.hostterms import HEARTBEAT_S
from sealift.lab.demo.roles import SLOW, start_orchestrator, start_others
from sealift.lab.demo.travelrun import SILENCE_S, Stops
from sealift.lab.guest.protocol import Act
from sealift.lab.worlds.folder import OWNERS, World
from sealift.release.audit import Entry
from sealift.release.logcheck import read_entries
from sealift.release.standing import HEARTBEAT_MISSING
from sealift.train.eventlines import RoleEvent
from sealift.train.household import Ended, Household
from sealift.travel.state import Clock

ACT: Final[Act] = "exec"
QUIET_S: Final = 1.0  # how long the holders are listened to after the end
FRAMES_BEFORE: Final = 12  # a visit, and some of the next one
BOUND_S: Final = HEARTBEAT_S + 1.0
ENDING: Final = ("accelerator", "orchestrator")
Misbehave = Callable[[Act], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Revocation:
    """What a bad act led to.

    Attributes:
        act: What was done.
        path: What the host's measurement list shows of it.
        rules: Why brokers revoked the lease, by owner; to those that are not named the
            accelerator gave its lease back when it lost another one.
        last_byte_s: Seconds from the act until the last frame of any holder.
        frames_after: Frames that still flowed in that time.
        scrubbed_bytes: Overwritten by the accelerator in visits that came to nothing.
        ended_s: Seconds from the act until the accelerator's process had ended.
    """

    act: str
    path: str
    rules: dict[str, str]
    last_byte_s: float
    frames_after: int
    scrubbed_bytes: int
    ended_s: float

    def say_stop(self) -> str:
        """When the last byte flowed, in words."""
        if not self.frames_after:
            return "no byte flowed after the act"
        return f"the last byte flowed {self.last_byte_s:.2f} s after the act"

    @property
    def held(self) -> bool:
        """Whether an owner saw it and revoked, and the flow stopped in time."""
        seen = any(rule != HEARTBEAT_MISSING for rule in self.rules.values())
        return seen and self.last_byte_s <= BOUND_S


@dataclass(slots=True)
class Watched:
    """What the processes told; pure state."""

    frames_s: list[float] = field(default_factory=list)
    scrubbed_bytes: int = 0
    ended_s: float = 0.0

    def take(self, event: RoleEvent) -> None:
        """Take note of an event."""
        match event.kind:
            case "holder.frame":
                self.frames_s.append(event.t_s)
            case "visit.abandoned":
                self.scrubbed_bytes += int(event.fields["scrubbed_bytes"])
            case "visit.ended" if event.text("outcome") != "verified":
                self.scrubbed_bytes += int(event.fields["scrubbed_bytes"])

    def after(self, at_s: float) -> list[float]:
        """Seconds after ``at_s`` of each later frame."""
        return [each - at_s for each in self.frames_s if each > at_s]


def run_second_act(
    world: World, place: str, misbehave: Misbehave, *, clock: Clock, stops: Stops
) -> Revocation:
    """Run the job that is to be stopped, and stop it by a bad act.

    Args:
        world: Of this act.
        place: Where the host's agent is.
        misbehave: Has the host do it.
        clock: Monotonic seconds, the same as in the roles' events.
        stops: How this process is stopped.
    """
    before = {owner: len(_entries(world, owner)) for owner in OWNERS}
    watched, bad = Watched(), _BadAct(misbehave, clock)
    with Household(world.path, stops.environment) as house:
        stops.on_second_signal(house.kill)
        with stops.postponed():
            start_orchestrator(house, world)
        for told in house.listen(SILENCE_S):
            if isinstance(told, Ended) and told.process in ENDING:
                break
            if isinstance(told, RoleEvent):
                if told.kind == "orchestrator.listening":
                    with stops.postponed():
                        port = int(told.fields["port"])
                        start_others(house, world, port, unusual=SLOW, agent=place)
                watched.take(told)
            if len(watched.frames_s) >= FRAMES_BEFORE:
                bad.do()
        ended_s = clock()
        if not bad.path:
            house.require_success(told.process)
            raise JobError("rows never flowed in the second act", code="role-ended")
        _hear_out(house, watched)
    return Revocation(
        act=ACT,
        path=bad.path,
        rules=_rules(world, before),
        last_byte_s=max(watched.after(bad.at_s), default=0.0),
        frames_after=len(watched.after(bad.at_s)),
        scrubbed_bytes=watched.scrubbed_bytes,
        ended_s=ended_s - bad.at_s,
    )


class _BadAct:
    """Done once."""

    def __init__(self, misbehave: Misbehave, clock: Clock) -> None:
        self._misbehave = misbehave
        self._clock = clock
        self.at_s = 0.0
        self.path = ""

    def do(self) -> None:
        if not self.path:
            self.at_s = self._clock()
            self.path = self._misbehave(ACT)


def _hear_out(house: Household, watched: Watched) -> None:
    """Whoever would still send rows is heard."""
    with suppress(PeerError):  # silence
        for told in house.listen(QUIET_S):
            if isinstance(told, RoleEvent):
                watched.take(told)


def _rules(world: World, before: dict[str, int]) -> dict[str, str]:
    rules = {}
    for owner, known in before.items():
        for entry in _entries(world, owner)[known:]:
            if entry.kind == "revocation":
                rules[owner] = entry.rule
    return rules


def _entries(world: World, owner: str) -> list[Entry]:
    log = world.home(owner).log
    return list(read_entries(log)) if log.exists() else []
