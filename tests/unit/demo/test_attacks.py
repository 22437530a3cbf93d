"""The attack table: all refused, and a rule that is gone is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from sealift.cli.main import main
from sealift.demo.attacks import board
from sealift.demo.attacks.scenario import Scenario, attempt
from sealift.demo.attacks.stage import Stage
from sealift.travel.frame import Frame
from sealift.travel.state import Visit


def scenario(attack: str) -> Scenario:
    return next(each for each in board.SCENARIOS if attack in each.attack)


@pytest.mark.parametrize("each", board.SCENARIOS, ids=lambda each: each.attack)
def test_refused_beside_a_control(tmp_path: Path, each: Scenario) -> None:
    tried = attempt(each, Stage(tmp_path))
    assert tried.refusal == each.expected
    assert tried.control_held


@pytest.mark.parametrize(
    ("attack", "owner", "rule"),
    [
        ("behind the end", Visit, "_check_place"),
        ("another buffer", Visit, "_check_place"),
        ("ratchets", Frame, "authenticate"),
    ],
)
def test_without_the_rule_it_gets_through(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    attack: str,
    owner: type,
    rule: str,
) -> None:
    monkeypatch.setattr(owner, rule, lambda *_: None)
    assert not attempt(scenario(attack), Stage(tmp_path)).good


def test_a_stage_on_which_nothing_works_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path)
    monkeypatch.setattr(Frame, "authenticate", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        attempt(scenario("flips one bit"), stage)


def test_the_command_ends_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attacks"]) == 0
    shown = capsys.readouterr().out
    assert f"{len(board.SCENARIOS)} of {len(board.SCENARIOS)} refused" in shown


def test_the_command_ends_badly_without_a_rule(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Visit, "_check_place", lambda *_: None)
    assert main(["attacks", "--json"]) == 5
    assert "[attack-succeeded]" in capsys.readouterr().err
