"""A holder whose file is not what it was: one clear line, that visit alone is refused.

Files that shrink, grow or are written to while a visit is under way, through the relay
and on a direct path. Mistakes are told by the holder in its own words; what a holder
does on purpose is caught by tags and hashes. Repeated records are in ``test_t4_splice``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sealift.channel.record.rawfile import RawSealedFile
from sealift.channel.transport.unixsocket import LocalListener
from sealift.errors import MalformedError, PeerError
from sealift.events import Event
from sealift.session.direct import PathDialler
from sealift.session.directhost import DirectHost
from sealift.travel.holder.visit import Provisioning
from sealift.travel.visit.messages import Failed, send_message
from tests.sim.hands import Bring, Hand
from tests.sim.visit_world import VisitWorld

Spoil = Callable[[Path], None]
EARLY, LATE = 130, -150  # in the first record, which has crossed; in the last record


def shrink(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 200)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(bytes(100))


def write(position: int) -> Spoil:
    def spoil(path: Path) -> None:
        whole = bytearray(path.read_bytes())
        whole[position] ^= 1
        with path.open("r+b") as file:
            file.write(whole)

    return spoil


def leave(path: Path) -> None:
    """The control: nothing happens to the file."""


def spoiling(spoil: Spoil, finder: PathDialler, *, at_frame: int = 2) -> Bring:
    """An honest holder whose file is spoilt when so many frames were sent."""

    def bring(hand: Hand) -> Any:
        sent = []

        def sink(event: Event) -> None:
            if event.kind == "holder.frame":
                sent.append(event)
                if len(sent) == at_frame:
                    spoil(hand.held.source.path)  # type: ignore[attr-defined]

        return Provisioning(
            hand.held,
            hand.signed,
            clock=hand.clock,
            check_heads=lambda heads: None,
            require_allowed=lambda: None,
            dialler=finder,
            sink=sink,
        ).provision(hand.session)

    return bring


CASES = {
    "shrinks": (shrink, "ends too early", "bad-sealed-file"),
    "grows": (grow, "100 bytes longer", "file-changed"),
    "is written to, before": (write(EARLY), "written to", "file-changed"),
    "is written to, ahead": (
        write(LATE),
        "",
        "authentication",
    ),  # the tag notices first
}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[VisitWorld]:
    with VisitWorld(tmp_path) as made:
        yield made


@pytest.mark.parametrize("path", ["relay", "memfd"])
@pytest.mark.parametrize("case", CASES)
def test_a_file_that_changes_in_mid_visit(
    world: VisitWorld, case: str, path: Any
) -> None:
    spoil, line, reason = CASES[case]
    world.direct_host = DirectHost(local=LocalListener())
    try:
        finder = PathDialler(local=path != "relay")
        outcome = world.visit("ada", spoiling(spoil, finder))
        assert not outcome.verified
        assert outcome.ended is not None
        assert line in str(outcome.holder_error)  # at home alone: it may name files
        assert not line or line not in outcome.ended.line
        assert "\n" not in outcome.ended.line
        assert outcome.reason == reason
        assert (outcome.receipt, world.trained) == (None, [])
        assert world.pools[-1].scrubbed
        assert world.visit("bern", spoiling(leave, finder)).verified  # others go on
        assert world.visit("cleo").verified
    finally:
        world.direct_host.close()


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("disk-full", "disk-full"),
        ("Not a name\x1b", "peer-failed"),
        ("", "peer-failed"),
    ],
)
def test_a_holder_that_refuses_says_why(
    world: VisitWorld, said: str, reason: str
) -> None:
    def refuse(hand: Hand) -> Any:
        send_message(hand.session, Failed(said, "the disk is full"))
        raise PeerError("it refused")

    outcome = world.visit("ada", refuse)
    assert (outcome.verified, outcome.reason) == (False, reason)
    assert outcome.ended is not None
    assert outcome.ended.line == "the peer refused: the disk is full"


def test_only_the_check_notices_what_was_sent_already(
    world: VisitWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant: what a record was when it crossed is all that counts."""
    monkeypatch.setattr(RawSealedFile, "check_unchanged", lambda self: None)
    for spoil in (grow, write(EARLY)):
        assert world.visit("ada", spoiling(spoil, PathDialler(local=False))).verified


@pytest.mark.parametrize("spoil", [shrink, grow])
def test_a_file_of_another_length_is_not_opened(
    world: VisitWorld, spoil: Spoil
) -> None:
    path = world.held["ada-train"].source.path  # type: ignore[attr-defined]
    RawSealedFile(path).close()  # control
    spoil(path)
    with pytest.raises(MalformedError) as caught:
        RawSealedFile(path)
    assert caught.value.code == "bad-sealed-file"
