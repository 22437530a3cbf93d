"""The attack table: all refused, and a rule that is gone is noticed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sealift.attest.tpm import verifier
from sealift.attest.verifier import AppraisalCheck
from sealift.travel.visit.lease import Frame
from sealift.travel.visit.state import Visit
from tests.attacks.scenarios import table as table
from tests.attacks.scenarios.__main__ import main
from tests.attacks.scenarios.table import Scenario, attempt
from tests.attacks.scenarios.world import AttackWorld


def scenario(attack: str) -> Scenario:
    return next(each for each in table.SCENARIOS if attack in each.attack)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackWorld]:
    """For what needs a host: a software TPM is not made for every test."""
    with closing(AttackWorld(tmp_path_factory.mktemp("s"))) as world:
        yield world


def of(letter: str) -> list[Scenario]:
    return [each for each in table.SCENARIOS if each.name.startswith(letter)]


@pytest.mark.parametrize("each", of("T") + of("N"), ids=lambda each: each.attack)
def test_refused_beside_a_control(tmp_path: Path, each: Scenario) -> None:
    with closing(AttackWorld(tmp_path)) as world:
        tried = attempt(each, world)
    assert tried.refusal == each.expected
    assert tried.control_held


RULES = [rule for letter in "CHM" for rule in of(letter)]


@pytest.mark.parametrize("each", of("P") + RULES, ids=lambda each: each.attack)
def test_key_refused_beside_a_control(world: AttackWorld, each: Scenario) -> None:
    tried = attempt(each, world)
    assert tried.refusal == each.expected
    assert tried.control_held


def test_every_claim_is_attacked() -> None:
    claims = {"T1", "T2", "T3", "T4", "T5", "T6", "T8", "T9"}
    rules = {"C7", "C9", "H6", "M4", "N1", "N5", "N6", "N7", "N8", "N9"}
    assert {each.name for each in table.SCENARIOS} == claims | rules | {
        f"P{number}" for number in range(1, 8)
    }
    assert len(table.SCENARIOS) >= 50


@pytest.mark.parametrize(
    ("attack", "module", "rule"),
    [
        ("another kernel", verifier, "check_registers"),
        ("hides what ran", verifier, "check_list"),
        ("clean machine", verifier, "check_pinned"),
        ("quote of before", verifier, "check_bound"),
    ],
)
def test_without_the_check_the_key_is_released(
    world: AttackWorld,
    monkeypatch: pytest.MonkeyPatch,
    attack: str,
    module: Any,
    rule: str,
) -> None:
    """Mutants: each comparison is the one that refuses."""
    genuine = getattr(module, rule)

    def agreeing(*args: Any) -> Any:
        return _agreeing(genuine(*args))

    monkeypatch.setattr(module, rule, agreeing)
    assert scenario(attack).attempt(world) == ""


def _agreeing(found: Any) -> Any:
    """The same result, in which every check agrees."""
    if isinstance(found, AppraisalCheck):
        return replace(found, code="")
    if isinstance(found, tuple | Iterator):
        return tuple(map(_agreeing, found))
    return found


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
    with closing(AttackWorld(tmp_path)) as world:
        assert not attempt(scenario(attack), world).good


def test_a_stage_on_which_nothing_works_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Frame, "authenticate", lambda *_: 1 / 0)
    with closing(AttackWorld(tmp_path)) as world, pytest.raises(ZeroDivisionError):
        attempt(scenario("flips one bit"), world)


@pytest.mark.long
def test_without_a_software_tpm_it_says_what_was_not_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert main([]) == 0
    shown = capsys.readouterr().out
    needing = len([*of("P"), *of("N8"), *of("N9"), *of("C9")])
    others = len(table.SCENARIOS) - needing
    assert f"{others} of {others} refused" in shown
    assert f"{needing} not tried" in shown


@pytest.mark.long
def test_the_command_ends_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Each row is an attack")
    assert f"{len(table.SCENARIOS)} of {len(table.SCENARIOS)} refused" in shown


@pytest.mark.long
def test_the_command_ends_badly_without_a_rule(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Visit, "_check_place", lambda *_: None)
    assert main(["--json"]) == 5
    assert "[attack-succeeded]" in capsys.readouterr().err
