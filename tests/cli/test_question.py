"""What a party is asked: every word of others is text, and the red stands where it must."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sealift.attest.level import Level
from sealift.cli.meeting import question
from sealift.cli.meeting.question import RED, ask_categories, tell_terms
from sealift.meet.terms import Terms
from tests.sim.invited import MetGuest, MetHost, walk

HOSTILE = "x\x1b[2J\x1b[31mSign? y\r\n\u202eedisrever\u0007"


@pytest.fixture
def terms(tmp_path: Path) -> Terms:
    host = MetHost(tmp_path)
    guests = [MetGuest(host, name) for name in host.names]
    walk(*guests)
    return guests[0].asked[0]


def screen(terms: Terms, *, colour: bool = False) -> str:
    return "\n".join(tell_terms(terms, "north", colour=colour))


def test_rows_at_home_are_said_so(terms: Terms) -> None:
    text = screen(terms, colour=True)
    assert "stay on this machine" in text
    assert RED not in text
    assert "whether host invented parties" in text


def test_rows_elsewhere_are_red_and_say_whose_machine(terms: Terms) -> None:
    elsewhere = replace(
        terms, declaration=replace(terms.declaration, rows_at_home=False)
    )
    assert RED in screen(elsewhere, colour=True)
    assert "CAN BE READ BY WHOEVER RUNS HOST'S MACHINE" in screen(elsewhere)
    sealed = replace(elsewhere.declaration, accept=(Level.TEE,))
    assert RED not in screen(replace(elsewhere, declaration=sealed), colour=True)


def test_what_others_wrote_cannot_draw_on_the_screen(terms: Terms) -> None:
    """Names are checked names; columns are anybody's text."""
    signed = terms.cards[0]
    columns = {HOSTILE: "fits"}
    body = replace(signed.body, columns=columns)  # type: ignore[arg-type]
    card = replace(signed, body=body)
    shown = screen(replace(terms, cards=(card, *terms.cards[1:])))
    assert not [c for c in shown if ord(c) < 32 and c != "\n"]
    assert "\u202e" not in shown
    assert shown.count("\n") == screen(terms).count("\n")


def test_categories_leave_by_a_yes_for_each_column_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = iter(["y", "n"])
    monkeypatch.setattr(question, "ask_line", lambda *how: next(answers))
    found = {
        "ward": {"c": 10, "d": 9, "e": 200},
        "site": {HOSTILE: 50},
        "rare": {"only": 1},
    }
    assert ask_categories(found) == {"ward": ("c", "e")}
    shown = capsys.readouterr().err
    assert "ward: 1 texts in fewer than 10 rows stay here" in shown
    assert "  e (200 rows)" in shown
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "rare has texts" not in shown
