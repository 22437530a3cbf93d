"""Plain words: what is given, what is received, and what nobody is protected from."""

from __future__ import annotations

from dataclasses import replace

from sealift.attest.level import Level
from sealift.lab.worlds.consortium import OUTPUT, make_consortium
from sealift.release.agreement import ROWS_LEASE, ReleaseRule
from sealift.release.agreement.explain import count, explain
from tests.sim.served import Served

AGREEMENT = make_consortium().agreement


def everybody(**changes: object) -> str:
    return "\n".join(explain(replace(AGREEMENT, **changes)).everybody)  # type: ignore[arg-type]


def test_development_keeps_nobody_out() -> None:
    assert "level development keeps NOBODY out" in everybody()
    hardware = everybody(accept=(Level.TEE,))
    assert "NOBODY" not in hardware
    assert "without a sandbox" not in hardware


def test_the_bad_news_is_said() -> None:
    text = everybody()
    assert "decides what the model keeps" in text
    assert "without a sandbox" in text
    assert "buffers = 1" in text
    assert "not proven" in text
    assert "cannot be called back" in text


def test_who_sees_which_numbers() -> None:
    assert "seen by every party, the operator included" in everybody()
    owner = everybody(output=replace(OUTPUT, audience="owner"))
    assert "seen by only the owner of the rows" in owner
    assert "no numbers leave" in everybody(output=replace(OUTPUT, metrics=()))
    text = everybody(output=replace(OUTPUT, recipe_text=True))
    assert "prints and exception text" in text
    assert "prints and exception text" not in everybody()


def test_each_party_gives_and_receives() -> None:
    ada, _, cleo = explain(AGREEMENT).parties
    assert [line.split(":")[0] for line in ada.gives] == [
        "ada-train", "ada-train", "ada-heldout", "ada-heldout",
    ]  # fmt: skip
    assert ada.departure_s == ROWS_LEASE.lease_s
    assert any("within 10 seconds" in each and "60" in each for each in ada.receives)
    assert any("not to train on" in line for line in ada.gives)
    assert any("whole cells of 1 row;" in line for line in ada.gives)
    assert not any("the model" in line for line in ada.receives)
    assert any("the model" in line for line in cleo.receives)
    assert any("signs leases" in line for line in cleo.gives)
    private = replace(AGREEMENT, output=replace(OUTPUT, audience="owner"))
    assert "the numbers of all owners" in ada.receives
    assert "the numbers of all owners" not in explain(private).parties[0].receives


def test_without_a_lease_a_departure_is_not_heard() -> None:
    rule = ReleaseRule(lease_s=0.0)
    resources = tuple(replace(each, rule=rule) for each in AGREEMENT.resources)
    ada = explain(replace(AGREEMENT, resources=resources)).parties[0]
    assert ada.departure_s is None
    assert any("stay good after it leaves" in line for line in ada.receives)


def test_all_that_leaves_a_served_model_is_said() -> None:
    (line,) = (
        each for each in explain(Served().agreement()).everybody if "answers" in each
    )
    assert (
        line == "doubler answers anybody who can reach it, with y; step by step with t"
    )


def test_lines_name_every_party() -> None:
    text = "\n".join(explain(AGREEMENT).lines())
    for party in AGREEMENT.parties:
        assert f"\n{party.name} (" in text


def test_count() -> None:
    assert [count(n, "row") for n in (0, 1, 2)] == ["0 rows", "1 row", "2 rows"]
