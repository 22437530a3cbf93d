"""A host whose terms let rows out meets the real `sealift join`: first shown, then refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sealift.errors import PolicyError, SealiftError
from sealift.meet import declaration, table
from sealift.meet import owner as owner_side
from sealift.meet.messages import BringCard, Over
from sealift.release.agreement import Between
from sealift.release.agreement.resources import OutputRule
from tests.sim import lyinghost
from tests.sim.lyinghost import LyingHost, lying_host

# A cell for each value: the sums are the rows. And the model for an owner who owns none.
LEAK: dict[str, Any] = {
    "statistics": ("cells",),
    "statistics_rows": 1,
    "model_to": ("host", "east"),
}
NAMED = ("statistics", "model-to")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LyingHost]:
    """The real host with another output rule."""
    usual = declaration._usual_output

    def leaking(guests: int) -> OutputRule:
        return replace(usual(guests), **LEAK)

    monkeypatch.setattr(declaration, "_usual_output", leaking)
    job = "[training]\nepochs = 2\nbatch_rows = 8\nprepare = true\n"
    monkeypatch.setattr(lyinghost, "JOB", job)
    monkeypatch.setattr(owner_side, "words_of", lambda terms: ("words",) * 8)
    with lying_host(tmp_path) as meeting:
        yield meeting


def test_all_that_leaks_is_shown_and_a_yes_to_everything_does_not_do(
    host: LyingHost,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    opened: list[Path] = []
    monkeypatch.setattr(table, "open_table", opened.append)
    north = host.owner("north").begin()
    error = north.refused()
    assert (type(error), error.code, error.exit_code) == (PolicyError, "below-floor", 5)
    shown = capsys.readouterr().err.replace("sealift:", "")
    words = " ".join(shown.split())
    assert (
        "Sums that the recipe's `prepare` computes over your rows are shared:" in words
    )
    assert "[needs --allow statistics]" in words
    assert "The model goes to east, and not to its owner host alone." in words
    assert north.questions == []
    assert opened == []  # nothing of the table was looked at, and nothing told
    assert host.book.seat("north").brought is None  # type: ignore[union-attr]


def test_a_digest_is_no_exception(host: LyingHost) -> None:
    over = Over("meeting-over", "", "it came to a comparison")
    host.lie = lambda name, told: told if isinstance(told, BringCard) else over
    digest = host.host.declaration.digest.to_text()
    named = {"compare_if": digest, "sign_if": digest}
    north = host.owner("north", answers=None, options=named).begin()
    assert north.refused().code == "below-floor"
    half = {"allow": ["statistics"]}
    assert host.owner("north", options=half).begin().refused().code == "below-floor"


def test_whoever_names_both_signs(host: LyingHost) -> None:
    """The control: the same terms, by the owners' own words."""
    north = host.owner("north", options={"allow": [*NAMED]}).begin()
    east = host.owner("east", options={"allow": ["statistics"]}).begin()
    for owner in (north, east):
        kept = owner.end()
        assert kept == owner.kept
        agreement = owner.kept.agreement
        assert agreement is not None
        assert agreement.model_to == ("host", "east")
    assert len(north.questions) == 3


def test_who_declines_needs_no_names(host: LyingHost) -> None:
    north = host.owner("north", options={"decline": True}).begin()
    assert north.refused().code == "meeting-declined"


# No number leaves, so none is over too few rows; and all owners together have enough.
FEW: dict[str, Any] = {
    "metric_rows": 1, "min_owner_rows": 1, "min_rows": 32,
}  # fmt: skip


@pytest.mark.parametrize("prepare", [False, True])
def test_three_rows_are_not_added_up_by_a_yes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepare: bool
) -> None:
    """What a rank shows of its own rows is over as few as the terms take."""
    job = f"[training]\nepochs = 1\nprepare = {str(prepare).lower()}\n"
    monkeypatch.setattr(lyinghost, "JOB", job)
    monkeypatch.setattr(lyinghost, "MEASURES", ())
    usual = declaration._usual_output
    monkeypatch.setattr(
        declaration, "_usual_output", lambda guests: replace(usual(guests), **FEW)
    )
    monkeypatch.setattr(owner_side, "words_of", lambda terms: ("words",) * 8)
    names = ["statistics"] * prepare + ["round-updates"]
    with lying_host(tmp_path) as meeting:
        north = meeting.owner("north", rows=3).begin()
        error = north.refused()
        assert error.code == "below-floor"
        assert all(f"--allow {each}" in str(error) for each in names)
        assert north.questions == []
        north, east = (
            meeting.owner(name, rows=rows, options={"allow": names})
            for name, rows in (("north", 3), ("east", 40))
        )
        north.begin()
        while not north.questions:  # until the host knows that north is back
            assert not north.wait(0.01), north.outcome
        east.begin()
        for each in (north, east):
            assert each.end() == each.kept


def test_rows_do_not_leave_for_an_unproven_machine_by_a_yes(host: LyingHost) -> None:
    told = host.host.declaration
    training = replace(told.training, plans=("travel",), slices=Between(1, 1))
    job = told.job.replace('plan = "ddp"', 'plan = "travel"')
    job = job.replace("count = 2", "count = 1")
    keys = (host.identity.public_key,)
    away: dict[str, Any] = {"rows_at_home": False, "attesters": keys}
    lie = host.declare(training=training, job=job, **away)
    host.lie = lambda name, said: BringCard(lie, dict(host.host.files))
    north = host.owner("north").begin()
    error = north.refused()
    assert error.code == "below-floor"
    assert "--allow rows-away" in str(error)
    assert north.questions == []


@pytest.mark.parametrize("sums", ["only", "open"])
def test_what_chooses_a_state_is_measured_by_all_or_nobody_signs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sums: str
) -> None:
    """South holds no rows out, so three owners would get no sum of their measures."""
    job = (
        '[training]\nepochs = 2\nevaluate_every = 1\nkeep = "best"\nmeasure = "accuracy"\n'
        f'[slices]\nsums = "{sums}"\n'
    )
    monkeypatch.setattr(lyinghost, "JOB", job)
    monkeypatch.setattr(owner_side, "words_of", lambda terms: ("words",) * 8)
    with lying_host(tmp_path, "north", "east", "south") as meeting:
        owners = [meeting.owner(name) for name in ("north", "east", "south")]
        for each in owners[:2]:
            each.args.heldout = each.table
        for each in owners:
            each.begin()
        ends = [each.end() for each in owners]
        if sums == "open":  # the control
            assert ends == [each.kept for each in owners]
            return
        codes = {end.code for end in ends if isinstance(end, SealiftError)}
        assert codes <= {"bad-choice", "meeting-declined"}
        assert "bad-choice" in codes
        assert "south" in "".join(map(str, ends))
        assert not any("Sign? (y/N)" in each.questions for each in owners)
        assert all(each.kept.agreement is None for each in owners)
