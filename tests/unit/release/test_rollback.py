"""Which agreement is the last: quorums that meet, sightings from logs, counters."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sealift.errors import IntegrityError, MalformedError, PolicyError, StaleError
from sealift.ids import Digest
from sealift.release.agreement import Agreement, Board, RollbackRule
from sealift.release.facts import (
    Sighting,
    read_sighting,
    require_latest,
)
from sealift.release.log.auditlog import AuditLog
from sealift.release.log.entries import Inclusion, LogEntry, Logged
from tests.sim.owners import NOW_S
from tests.worlds.consortium import Consortium, make_consortium

RULE = RollbackRule(2, 0)


def agreed() -> Consortium:
    first = make_consortium()
    board = Board(members=("ada", "bern", "cleo"), threshold=2, rollback=RULE)
    return replace(first, agreement=replace(first.agreement, board=board))


FIRST = agreed()
SECOND = FIRST.successor().agreement


def saw(owner: str, agreement: Agreement) -> Sighting:
    return Sighting(owner, agreement.number, agreement.digest)


def test_a_quorum_that_saw_nothing_later() -> None:
    require_latest(SECOND, [saw("ada", SECOND), saw("bern", FIRST.agreement)])


def test_one_who_saw_a_later_one_is_enough() -> None:
    seen = [saw("ada", FIRST.agreement), saw("bern", SECOND)]
    with pytest.raises(StaleError, match="bern") as caught:
        require_latest(FIRST.agreement, seen)
    assert caught.value.code == "agreement-rolled-back"


def test_too_few_were_asked() -> None:
    for seen in ([], [saw("ada", SECOND)], [saw("ada", SECOND)] * 2):
        with pytest.raises(PolicyError) as caught:
            require_latest(SECOND, seen)
        assert caught.value.code == "quorum-missing"
    with pytest.raises(PolicyError):  # who owns no data has no say
        require_latest(SECOND, [saw("ada", SECOND), saw("zoe", SECOND)])


def test_another_agreement_of_the_same_number() -> None:
    fork = replace(saw("bern", SECOND), digest=Digest.of(b"another"))
    with pytest.raises(StaleError) as caught:
        require_latest(SECOND, [saw("ada", SECOND), fork])
    assert caught.value.code == "agreement-forked"


def test_without_a_rule_nobody_is_asked() -> None:
    require_latest(make_consortium().agreement, [])


@given(st.integers(1, 7), st.integers(1, 7), st.integers(0, 6))
def test_any_two_quorums_share_an_honest_owner(n: int, q: int, f: int) -> None:
    """What the rule promises, by trying every pair; and no more than that."""
    quorums = [set(each) for each in combinations(range(n), q)] if q <= n else []
    shared = min((len(a & b) for a in quorums for b in quorums), default=0)
    try:
        RollbackRule(q, f).check_for(n, "quorum")
    except MalformedError:
        assert shared <= f
    else:
        assert shared > f


ADA, BERN = SECOND.party("ada"), SECOND.party("bern")


def logged(folder: Path, name: str, agreement: Agreement, kind: str = "agreement"):  # type: ignore[no-untyped-def]
    """An entry of an owner's log, with its proof and head."""
    identity = FIRST.identities[name]
    log = AuditLog.create(folder / f"{name}.log", identity, lambda: NOW_S)
    entry = LogEntry(kind=kind, at_s=1, agreement=agreement.digest)  # type: ignore[arg-type]
    appended = log.append(entry)
    log.close()
    return appended


def test_a_sighting_from_a_log(tmp_path: Path) -> None:
    found = logged(tmp_path, "ada", SECOND)
    seen = read_sighting(found, owner=ADA, agreement=SECOND)
    assert seen == saw("ada", SECOND)


def test_a_sighting_that_the_log_does_not_show(tmp_path: Path) -> None:
    found = logged(tmp_path, "ada", SECOND)
    with pytest.raises(IntegrityError) as caught:
        read_sighting(found, owner=BERN, agreement=SECOND)
    assert caught.value.code == "not-the-owner"
    with pytest.raises(MalformedError):
        read_sighting(
            found, owner=ADA, agreement=FIRST.agreement,
        )  # fmt: skip
    with pytest.raises(IntegrityError) as caught:
        read_sighting(
            Logged(found.entry.replace(b"1", b"2", 1), Inclusion(0, ()), found.head),
            owner=ADA, agreement=SECOND,
        )  # fmt: skip
    assert caught.value.code == "entry-not-in-log"


def test_an_entry_about_something_else(tmp_path: Path) -> None:
    found = logged(tmp_path, "ada", SECOND, kind="refusal")
    with pytest.raises(MalformedError):
        read_sighting(found, owner=ADA, agreement=SECOND)
