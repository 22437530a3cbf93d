"""A holder's own side: what it says there stops its rows before the next frame."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from sealift.errors import PeerError, SealiftError
from sealift.events import Event
from sealift.release.agreement.statements import (
    StatementKind,
    save_statement,
    sign_statement,
)
from sealift.release.broker.inforce import StatementsInForce
from sealift.session.session import Session
from sealift.travel.holder.watches import PartyWatch
from tests.sim.owners import NOW_S, now
from tests.worlds.consortium import Consortium, make_consortium


class Line:
    """A circuit that knows whether it was closed."""

    closed = False

    def close(self) -> None:
        self.closed = True


class Home:
    """Ada's own side."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.consortium: Consortium = make_consortium()
        self.events: list[Event] = []
        verified = self.consortium.verified()
        self.own = PartyWatch(
            "ada",
            verified,
            StatementsInForce(verified, folder, clock=now),
            meet_broker=self._nobody,
            clock=lambda: 100.0,
            sink=self.events.append,
        )

    def say(self, kind: StatementKind, party: str) -> None:
        identity = self.consortium.identities[party]
        said = sign_statement(kind, self.consortium.agreement, identity, NOW_S)
        save_statement(said, self.folder)

    def _nobody(self) -> Session:
        raise PeerError("no broker")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def code_of(step: Callable[[], None]) -> str:
    try:
        step()
    except SealiftError as error:
        return error.code
    return ""


@pytest.mark.parametrize(
    ("kind", "party", "code"),
    [
        ("leave", "ada", "owner-left"),
        ("veto", "ada", "agreement-vetoed"),
        ("veto", "bern", "agreement-vetoed"),
        ("leave", "bern", ""),  # control: another's departure is its own
        ("cancel", "bern", ""),  # control: too few of the board
    ],
)
def test_what_lies_at_home_counts_at_once(
    home: Home, kind: StatementKind, party: str, code: str
) -> None:
    assert code_of(home.own.require_staying) == ""
    home.say(kind, party)
    assert code_of(home.own.require_staying) == code
    assert (home.own.ended is not None) is bool(code)


def test_once_it_left_it_stays_so(home: Home) -> None:
    home.say("leave", "ada")
    assert code_of(home.own.require_staying) == "owner-left"
    for each in home.folder.iterdir():
        each.unlink()
    assert code_of(home.own.require_staying) == "owner-left"


def test_it_hangs_up_on_everybody(home: Home) -> None:
    """Also on whoever only waits, and sends nothing."""
    line = Line()
    with home.own.open(cast(Any, line)):
        assert home.own._look() is not None
        assert not line.closed
        home.say("leave", "ada")
        assert home.own._look() is None
        assert line.closed


def test_what_cannot_be_read_is_no_leave(home: Home) -> None:
    """Nothing is sent meanwhile; the next look may read it."""
    path = home.folder / "x.statement.json"
    path.write_bytes(b"{")
    assert code_of(home.own.require_staying) == "bad-statement"
    assert home.own.ended is None
    path.unlink()
    assert code_of(home.own.require_staying) == ""
