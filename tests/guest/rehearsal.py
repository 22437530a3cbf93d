"""A rehearsal of an attested host: a guest that boots, attests, and misbehaves at last.

In the second act another job runs under the same agreement, with holders on slow lines.
Once rows flow, the guest executes a program that nobody agreed on. Every owner's broker
sees it in the evidence of the next renewal and revokes the lease; the holders stop. What
is told of it comes from the holders' own frames and the brokers' own logs.

``python -m tests.guest.rehearsal`` runs `sealift demo` on that host, with its options.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from sealift.attest.evidence import BOUND_BYTES
from sealift.attest.reference import TpmReferences
from sealift.cli.arguments import Parser
from sealift.cli.main import run_guarded
from sealift.demo.command import add_options, show_demo
from sealift.demo.folder import OWNERS, World
from sealift.demo.outcome import Revocation
from sealift.demo.run import SLOW, started
from sealift.errors import JobError, PeerError, SealiftError
from sealift.release.log.entries import Entry
from sealift.release.log.heads import read_entries
from sealift.train.job.roleprocesses import Ended, RoleEvent, RoleProcesses
from sealift.travel.visit.state import Clock
from tests.guest.agent import Act
from tests.guest.image import (
    build_image,
    find_image,
    guest_folder,
    guest_references,
)
from tests.guest.machine import AgentPort, Guest

ACT: Final[Act] = "exec"
ENDING: Final = ("accelerator", "orchestrator")
QUIET_S: Final = 1.0  # how long the holders are listened to after the end
FRAMES_BEFORE: Final = 12  # a visit, and some of the next one
Say = Callable[[str], None]
Misbehave = Callable[[Act], str]


class RehearsedHost:
    """A guest, booted in a thread of its own from the start; a context manager.

    Args:
        say: Tells people what takes its time.
    """

    def __init__(self, say: Say) -> None:
        self._say = say
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="guest")
        self._booting: Future[tuple[Guest, AgentPort]] = self._pool.submit(self._boot)

    def __enter__(self) -> RehearsedHost:
        return self

    def __exit__(self, *exception: object) -> None:
        with suppress(SealiftError):
            guest, port = self._booting.result()
            port.close()
            guest.close()
        self._pool.shutdown()

    @property
    def place(self) -> str:
        """What ``sealift accelerator --agent`` is told."""
        return self._booting.result()[1].place

    def references(self) -> TpmReferences:
        """Of this boot, which its owner watches: this very process.

        Raises:
            UnavailableError: if it did not boot.
        """
        guest, _ = self._booting.result()
        first = guest.collect(bytes(BOUND_BYTES))
        return guest_references(guest.image.manifest, first, guest.root)

    def run_second_act(self, world: World, clock: Clock) -> Revocation:
        """Misbehave while rows of another job flow; what that led to."""
        guest, port = self._booting.result()
        return run_second_act(world, port.place, guest.misbehave, clock=clock)

    def kill(self) -> None:
        """Switch it off at once: the last act of a second signal."""
        if self._booting.done() and not self._booting.exception():
            self._booting.result()[0].close()

    def _boot(self) -> tuple[Guest, AgentPort]:
        folder = guest_folder()
        if find_image(folder) is None:
            self._say("building the guest: Debian's packages, once")
        image = build_image(folder)
        self._say("booting the guest: measured boot, IMA, a software TPM")
        guest = Guest(image)
        return guest, AgentPort(guest)


@dataclass(slots=True)
class Watched:
    """What the processes told; pure state."""

    frames_s: list[float] = field(default_factory=list)
    scrubbed_bytes: int = 0

    def take(self, event: RoleEvent) -> None:
        """Take note of an event."""
        if event.kind == "holder.frame":
            self.frames_s.append(event.t_s)
        elif event.kind == "visit.abandoned" or (
            event.kind == "visit.ended" and event.text("outcome") != "verified"
        ):
            self.scrubbed_bytes += int(event.fields["scrubbed_bytes"])

    def after(self, at_s: float) -> list[float]:
        """Seconds after ``at_s`` of each later frame."""
        return [each - at_s for each in self.frames_s if each > at_s]


def run_second_act(
    world: World, place: str, misbehave: Misbehave, *, clock: Clock
) -> Revocation:
    """Run the job that is to be stopped, and stop it by a bad act.

    Args:
        world: Of this act.
        place: Where the host's agent is.
        misbehave: Has the host do it.
        clock: Monotonic seconds, the same as in the roles' events.
    """
    before = {owner: len(_entries(world, owner)) for owner in OWNERS}
    watched, path, at_s = Watched(), "", 0.0
    with started(world, SLOW, place) as (processes, told):
        for each in told:
            if isinstance(each, Ended) and each.process in ENDING:
                break
            if isinstance(each, RoleEvent):
                watched.take(each)
            if len(watched.frames_s) >= FRAMES_BEFORE and not path:
                at_s = clock()
                path = misbehave(ACT)
        ended_s = clock()
        if not path:
            processes.require_success(each.process)
            raise JobError("rows never flowed in the second act", code="role-ended")
        _hear_out(processes, watched)
    after = watched.after(at_s)
    return Revocation(
        path=path,
        rules=_rules(world, before),
        last_byte_s=max(after, default=0.0),
        frames_after=len(after),
        scrubbed_bytes=watched.scrubbed_bytes,
        ended_s=ended_s - at_s,
    )


def _hear_out(processes: RoleProcesses, watched: Watched) -> None:
    """Whoever would still send rows is heard."""
    with suppress(PeerError):  # silence
        for told in processes.listen(QUIET_S):
            if isinstance(told, RoleEvent):
                watched.take(told)


def _rules(world: World, before: Mapping[str, int]) -> dict[str, str]:
    return {
        owner: entry.rule
        for owner, known in before.items()
        for entry in _entries(world, owner)[known:]
        if entry.kind == "revocation"
    }


def _entries(world: World, owner: str) -> list[Entry]:
    log = world.home(owner).log
    return list(read_entries(log)) if log.exists() else []


def main(arguments: Sequence[str]) -> int:
    """Run the demo on a rehearsed host; the exit code."""
    parser = Parser(prog="python -m tests.guest.rehearsal", description=__doc__)
    add_options(parser)
    parser.set_defaults(plan="travel")
    args = parser.parse_args(arguments)
    return run_guarded(lambda: show_demo(args, RehearsedHost))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
