"""Holders that connect directly, and what they tell of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sealift.channel.transport.tcp import TcpListener
from sealift.channel.transport.unixsocket import LocalListener
from sealift.events import Event
from sealift.session.direct import Kind, PathDialler
from sealift.session.directhost import DirectHost
from sealift.travel.holder.visit import Provisioning
from tests.sim.hands import Bring, Hand
from tests.sim.visit_world import VisitWorld

Kinds = Iterable[Kind]
PORTS: list[int] = []  # of the listening end of the test at hand
TOLD: list[Event] = []  # by the holder to its own log


PLACE = "127.0.0.1:{}"


def finder_of(kinds: Kinds) -> PathDialler:
    """As a holder's settings name the listening end of a world."""
    ports = PORTS if "tcp" in kinds else ()
    return PathDialler(local="memfd" in kinds, places=[PLACE.format(p) for p in ports])


def directly(
    kinds: Kinds = ("memfd", "tcp"), finder: PathDialler | None = None
) -> Bring:
    """The real holder, on the first direct path of these kinds."""

    def bring(hand: Hand) -> Any:
        return Provisioning(
            hand.held,
            hand.signed,
            clock=hand.clock,
            check_heads=lambda heads: None,
            require_allowed=lambda: None,
            dialler=finder or finder_of(kinds),
            sink=TOLD.append,
        ).provision(hand.session)

    return bring


def paths_of(world: VisitWorld) -> list[tuple[Any, Any]]:
    """Each path that was taken, and why; the accelerator knows the first."""
    mine = [event.fields for event in TOLD if event.kind == "visit.path"]
    theirs = [event.fields for event in world.events if event.kind == "visit.path"]
    assert [each["path"] for each in mine] == [each["path"] for each in theirs]
    assert all("why" not in each for each in theirs)
    return [(each["path"], each["why"]) for each in mine]


@contextmanager
def listening(folder: Path) -> Iterator[VisitWorld]:
    """A world whose accelerator offers both kinds of direct path."""
    with VisitWorld(folder) as world:
        tcp = TcpListener()
        PORTS[:] = [tcp.address[1]]
        TOLD.clear()
        direct_host = world.direct_host = DirectHost(
            local=LocalListener(), tcp=tcp, sink=world.events.append
        )
        yield world
        direct_host.close()
