"""The real `sealift join` of one owner or more, in threads, and a host that may lie to them.

Relay, sessions, book and declaration are the product's; what the host says next passes a
function of the test. An owner's person answers from a list, and its clock is the test's.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sealift.cli.meeting.guest import brought_by
from sealift.cli.meeting.place import open_folder
from sealift.crypto.identity import Identity, create_identity
from sealift.errors import SealiftError
from sealift.events import Event, wall_clock
from sealift.meet.connection import MeetingListener, places
from sealift.meet.declaration import declaration_of, invitations_for
from sealift.meet.host import Host
from sealift.meet.invitation import HOST, Invitation
from sealift.meet.messages import FromHost
from sealift.meet.owner import MeetingProgress, OwnerMeeting, read_kept
from sealift.meet.question import OwnerAnswers
from sealift.meet.state import MeetingState
from sealift.meet.terms import Declaration
from sealift.release.agreement.code import find_assets
from sealift.session.relay.server import Relay

WAIT_S = 60.0  # less than a mutant's test may take
RECIPE = "def build():\n    return None\n"
SCHEMA = """
[[fields]]
name = "age"
dtype = "float32"
max = 120

[[fields]]
name = "ward"
dtype = "int64"
categories = ["a", "b"]
"""
MEASURES = ("loss", "accuracy")
JOB = "[training]\nepochs = 2\nbatch_rows = 8\n"
YES = ("y", "y", "y")
Lie = Callable[[str, FromHost], FromHost]


def honest(name: str, told: FromHost) -> FromHost:
    """What the book says."""
    return told


@dataclass(frozen=True)
class ToldHost(Host):
    """A host whose next word passes a function."""

    lie: Lie = honest

    def next_for(self, name: str) -> FromHost:
        return self.lie(name, super().next_for(name))


class LyingHost:
    """A meeting at a port of this process."""

    def __init__(self, folder: Path, names: Sequence[str] = ("north", "east")) -> None:
        self.folder = folder
        recipe = folder / "host" / "wards"
        recipe.mkdir(parents=True)
        (recipe / "recipe.py").write_text(RECIPE)
        (recipe / "schema.toml").write_text(SCHEMA)
        (recipe / "job.toml").write_text(JOB)
        self.identity: Identity = create_identity(HOST)
        self.told: list[Event] = []
        self.said: list[tuple[str, FromHost]] = []
        self.lie: Lie = honest
        self.recipe = recipe
        invited = invitations_for(self.identity, names, address="127.0.0.1:1", days=2)
        self.book = MeetingState.create(folder / "host" / "meeting.db", invited)
        self.relay = Relay.listen(registry=places(self.book, invited[0].meeting))
        host, port = self.relay.address
        self.invitations = {
            each.name: replace(each, addresses=(f"{host}:{port}",)) for each in invited
        }
        self.host = self._host()
        client = self.relay.local_client(HOST)
        MeetingListener(
            client, self.host, sink=self.told.append, vouch=self.relay.vouch
        ).start()

    def _host(self) -> ToldHost:
        invited = [*self.invitations.values()]
        graph = self.folder / "host" / "graph"
        declared, files = declaration_of(
            self.recipe,
            invited,
            self.identity,
            MEASURES,
            graph=graph if graph.exists() else None,
        )
        self.book.declare(declared.digest)
        assets = find_assets(graph) if graph.exists() else {}
        return ToldHost(
            self.book,
            declared,
            files,
            self.identity,
            wall_clock,
            self._next,
            assets=assets,
        )

    def _next(self, name: str, told: FromHost) -> FromHost:
        answer = self.lie(name, told)
        self.said.append((name, answer))
        return answer

    def declare(self, **changes: Any) -> Declaration:
        """Another declaration than the one that the host has."""
        return replace(self.host.declaration, **changes)

    def owner(self, name: str, **how: Any) -> Owner:
        """The command of a party that was invited, typed in its folder."""
        return Owner(self.folder / name, self.invitations[name], **how)

    def close(self) -> None:
        """As after a stop."""
        self.relay.close()  # the book stays open: sessions that end may still read it


@contextmanager
def lying_host(folder: Path, *names: str) -> Iterator[LyingHost]:
    """A host, closed in the end."""
    host = LyingHost(folder, names or ("north", "east"))
    try:
        yield host
    finally:
        host.close()


@dataclass
class Owner:
    """One owner's command, typed once; made again in the same folder it goes on."""

    folder: Path
    invitation: Invitation
    answers: Sequence[str] | None = YES
    rows: int = 40
    options: dict[str, Any] = field(default_factory=dict)
    questions: list[str] = field(default_factory=list, init=False)
    slept: list[float] = field(default_factory=list, init=False)
    outcome: MeetingProgress | BaseException | None = field(default=None, init=False)
    clock: Callable[[], float] = field(default=time.monotonic, init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.table = self.folder / "train.csv"
        if not self.table.exists():
            self.write_rows(self.rows)
        self._left = [*(self.answers or ())]
        given = {
            "data": self.table, "heldout": None, "compare_if": "", "sign_if": "",
            "decline": False, "allow": (), "table": None, "only_graph": False, "privacy": None,
            "fields": None, "image_size": None, "image_mode": None,
        }  # fmt: skip
        self.args = argparse.Namespace(**(given | self.options))
        self._thread = threading.Thread(target=self._run, daemon=True)

    def write_rows(self, rows: int, oldest: int = 90) -> None:
        """A table with one person of that age."""
        lines = [f"{20 + row % 50},{'ab'[row % 2]}" for row in range(rows - 1)]
        text = "\n".join(["age,ward", f"{oldest},a", *lines])
        self.table.write_text(f"{text}\n")

    def begin(self) -> Owner:
        """Type it."""
        self._thread.start()
        return self

    def end(self) -> MeetingProgress | BaseException | None:
        """What it kept, or the error that it ended with."""
        self._thread.join(WAIT_S)
        if self._thread.is_alive():
            raise AssertionError((self.folder.name, self.questions))
        return self.outcome

    def wait(self, seconds: float) -> bool:
        """Whether it has ended, so long from now at the latest."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def refused(self) -> SealiftError:
        """The error that it ended with."""
        error = self.end()
        assert isinstance(error, SealiftError), error
        return error

    @property
    def kept(self) -> MeetingProgress:
        """What lies in its folder."""
        return read_kept(
            open_folder(self.folder, self.invitation.name), self.invitation
        )

    def _run(self) -> None:
        place = open_folder(self.folder, self.invitation.name)
        try:
            args, identity = self.args, place.identity()
            self.outcome = OwnerMeeting(
                self.invitation,
                place,
                identity,
                brought_by(args, identity),
                read_kept(place, self.invitation),
                OwnerAnswers(
                    args.compare_if,
                    args.sign_if,
                    args.decline,
                    args.allow,
                    only_graph=args.only_graph,
                    privacy=args.privacy,
                ),
                ask=None if self.answers is None else self._answer,
                clock=self.clock,
                sleep=self._sleep,
            ).attend()
        except BaseException as error:
            self.outcome = error

    def _answer(self, question: str, default: str) -> str:
        self.questions.append(question)
        return self._left.pop(0) if self._left else default

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        time.sleep(min(seconds, 0.02))
