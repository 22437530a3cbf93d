"""Owners entrust their keys to one broker over a real relay (rule C10)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from sealift.crypto.keys import TOKEN, SecretKey
from sealift.crypto.sign import PublicKey, SigningKey
from sealift.errors import SealiftError, UnavailableError, UsageError
from sealift.ids import Digest, Role
from sealift.release.agreement import Board, RollbackRule
from sealift.release.checkpoint import CheckpointMark
from sealift.release.collect import request_head
from sealift.release.custody import Seat, log_name
from sealift.release.entrust import withdraw
from sealift.release.heads import HeadStore
from sealift.release.logcheck import read_entries, read_head, verify_log
from sealift.release.shares import Shares
from sealift.release.speaking import log_owner
from sealift.release.statement import sign_statement
from sealift.session import Session
from sealift.travel import sharedbrokerage
from sealift.travel.brokerage import dismiss_brokers
from sealift.travel.peers import ORCHESTRATOR
from tests.sim.owners import NOW_S, Consortium
from tests.sim.shared_broker import Town, entrusting, owner_vault


@pytest.fixture(scope="module")
def consortium() -> Consortium:
    return entrusting()


@pytest.fixture
def town(consortium: Consortium, tmp_path: Path) -> Iterator[Town]:
    statements = tmp_path / "beside"
    statements.mkdir()
    town = Town(consortium, tmp_path / "logs", statements=statements)
    yield town
    town.close()


def test_two_owners_one_broker(
    town: Town, consortium: Consortium, tmp_path: Path
) -> None:
    """Each with its key, its log, its count; neither sees the other's."""
    heads = HeadStore(tmp_path / "heads.json")
    for owner in ("ada", "bern"):
        vault = owner_vault(consortium, owner, tmp_path / f"{owner}.vault")
        signed = town.entrust(owner, vault)
        assert signed.appointment.level == "development"
        line = consortium.agreement.name
        assert vault.ledger.uses(line, f"{owner}-train") == 3  # given away, so counted
        assert town.collect(owner) == "released"
        with town.reach(owner) as session:
            head = request_head(session)
        assert log_owner(head, town.verified).name == owner
        heads.admit(head)
        vault.close()
    keys = {seat.deputy.public_key for seat in town.custody.seats.values()}
    assert len(keys) == 2
    for seat in town.custody.seats.values():
        path = town.folder / log_name(seat.deputy)
        kinds = [entry.kind for entry in read_entries(path)]
        assert kinds == ["agreement", "release"]
        assert verify_log(path, read_head(path)).releases == 1
        assert next(read_entries(path)).info == seat.log.appointment.digest


def test_its_uses_are_what_the_owner_gave(
    town: Town, consortium: Consortium, tmp_path: Path
) -> None:
    vault = owner_vault(consortium, "ada", tmp_path / "v")
    town.entrust("ada", vault)
    assert [town.collect("ada") for _ in range(3)] == ["released"] * 3
    assert "uses-exhausted" in town.collect("ada")
    town.crash()
    town.start()
    town.entrust("ada", vault)  # the owner's own count goes on
    assert town.collect("ada") == "released"
    assert vault.ledger.uses(consortium.agreement.name, "ada-train") == 6
    vault.close()


def test_started_again_it_has_nothing(
    town: Town, consortium: Consortium, tmp_path: Path
) -> None:
    vault = owner_vault(consortium, "ada", tmp_path / "v")
    town.entrust("ada", vault)
    town.crash()
    town.events.clear()
    town.start()
    assert town.collect("ada").startswith("unknown-peer")
    assert ("broker.empty", {"owner": "ada"}) in town.events
    town.entrust("ada", vault)
    assert town.collect("ada") == "released"
    vault.close()


def test_the_job_ends(town: Town, consortium: Consortium, tmp_path: Path) -> None:
    """It ends when every seat was told, and its keys with it."""
    for owner in ("ada", "bern"):
        vault = owner_vault(consortium, owner, tmp_path / f"{owner}.vault")
        town.entrust(owner, vault)
        vault.close()
    operator = replace(town.holder("cleo"), role=Role.ORCHESTRATOR)
    with town.link(ORCHESTRATOR) as link:
        dismiss_brokers(link, operator, town.verified, "finished")
    town.thread.join(10)
    assert not town.thread.is_alive()
    assert town.ended == ""
    assert not town.custody.seats


def test_checkpoints(town: Town, consortium: Consortium, tmp_path: Path) -> None:
    """A seat keeps its owner's shares, in memory, and signs for it."""
    vault = owner_vault(consortium, "ada", tmp_path / "v")
    town.entrust("ada", vault)
    vault.close()
    share = SecretKey.generate()
    mark = CheckpointMark(1, Digest.of(b"sealed"), ("ada",))
    ours = town.accelerator()

    def shares(session: Session) -> Shares:
        clock = time.monotonic
        return Shares(session, town.verified, "ada", job="job", clock=clock)

    with town.reach("ada", ours) as session:
        asked = shares(session)
        asked.claim()
        asked.deposit(mark, share)
        head = asked.commit(mark)
    assert log_owner(head, town.verified).name == "ada"
    with town.reach("ada", ours) as session:
        found, _ = shares(session).fetch(mark)
    assert found.reveal(TOKEN) == share.reveal(TOKEN)


def test_withdrawn(town: Town, consortium: Consortium, tmp_path: Path) -> None:
    """Gone at once, for good; another appointment is another key."""
    vault = owner_vault(consortium, "ada", tmp_path / "v")
    first = town.entrust("ada", vault)
    said = sign_statement("withdraw", consortium.agreement, town.identity("ada"), NOW_S)
    with town.meet("ada") as session:
        assert withdraw(session, said)
        assert not withdraw(session, said)
    assert town.collect("ada").startswith("unknown-peer")
    assert (town.statements / said.file_name).exists()
    town.verified = town.verified.under((said,))
    second = town.entrust("ada", vault)
    assert second.appointment.key != first.appointment.key
    assert town.collect("ada") == "released"
    vault.close()


def test_nobody_withdraws_for_another(
    town: Town, consortium: Consortium, tmp_path: Path
) -> None:
    vault = owner_vault(consortium, "ada", tmp_path / "v")
    town.entrust("ada", vault)
    said = sign_statement("withdraw", consortium.agreement, town.identity("ada"), NOW_S)
    with (
        town.meet("bern") as session,
        pytest.raises(SealiftError, match="not-the-owner"),
    ):
        withdraw(session, said)
    assert town.collect("ada") == "released"
    vault.close()


def test_its_time_ends(town: Town, consortium: Consortium, tmp_path: Path) -> None:
    vault = owner_vault(consortium, "ada", tmp_path / "v")
    town.entrust("ada", vault)
    assert town.collect("ada") == "released"
    town.clock.now_s += 601
    assert "appointment-expired" in town.collect("ada") or not town.custody.seats
    deadline = time.monotonic() + 10
    while town.custody.seats and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not town.custody.seats  # and its keys are destroyed
    vault.close()


def test_a_statement_beside_the_agreement(
    town: Town, consortium: Consortium, tmp_path: Path
) -> None:
    """A veto that comes while it runs ends releases of everybody."""
    from sealift.release.statement import save_statement

    vault = owner_vault(consortium, "ada", tmp_path / "v")
    town.entrust("ada", vault)
    assert town.collect("ada") == "released"
    said = sign_statement("veto", consortium.agreement, town.identity("bern"), NOW_S)
    save_statement(said, town.statements)
    assert "agreement-vetoed" in town.collect("ada")
    vault.close()


def test_an_owner_with_a_broker_of_its_own(
    town: Town, consortium: Consortium, tmp_path: Path
) -> None:
    """cleo is not among those who may entrust; the desk does not even meet it."""
    vault = owner_vault(consortium, "cleo", tmp_path / "v")
    with pytest.raises(SealiftError) as caught:
        town.entrust("cleo", vault)
    assert caught.value.code == "not-entrusting"
    vault.close()


def test_role_of_the_desk(town: Town) -> None:
    with town.meet("ada") as session:
        assert session.peer.role is Role.BROKER
        assert session.peer.result is not None


def test_seats_are_asked_like_brokers(tmp_path: Path) -> None:
    """A quorum of owners, of which one broker speaks for two: by their leave."""
    names = ("ada", "bern", "cleo")
    board = Board(members=names, threshold=2, rollback=RollbackRule(2, 0))
    world = entrusting(board=board)
    town = Town(world, tmp_path / "logs")
    for owner in ("ada", "bern"):
        vault = owner_vault(world, owner, tmp_path / f"{owner}.vault")
        town.entrust(owner, vault)
        vault.close()
        if owner == "ada":
            assert "quorum-missing" in town.collect("ada")
    deadline = time.monotonic() + 15
    while (said := town.collect("ada")) != "released" and time.monotonic() < deadline:
        time.sleep(0.1)
    town.close()
    assert said == "released"


def open_lease(town: Town, owner: str) -> PublicKey:
    """An instance that holds a key of this owner's under a lease."""
    instance = SigningKey.generate().public_key
    standings = town.custody.seats[owner].broker.leases._standings
    standings.grant(instance, 3600.0, time.monotonic(), "somebody")
    return instance


def fill_disk(seat: Seat, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> NoReturn:
        raise UnavailableError("no space", code="disk-full")

    monkeypatch.setattr(seat.log, "append", full)


def await_destroyed(seat: Seat) -> None:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            seat.deputy.seed.reveal(TOKEN)
        except UsageError:
            return
        time.sleep(0.02)
    raise AssertionError("the keys are still there")


def test_a_full_disk_keeps_no_keys(
    town: Town, consortium: Consortium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator's disk: what ends an appointment ends the keys, logged or not."""
    seats = {}
    for owner in ("ada", "bern"):
        vault = owner_vault(consortium, owner, tmp_path / f"{owner}.vault")
        town.entrust(owner, vault)
        vault.close()
        seats[owner] = town.custody.seats[owner]
        open_lease(town, owner)
        fill_disk(seats[owner], monkeypatch)
    said = sign_statement("withdraw", consortium.agreement, town.identity("ada"), NOW_S)
    with town.meet("ada") as session:
        assert withdraw(session, said)
    await_destroyed(seats["ada"])
    town.clock.now_s += 3600  # bern's ends by its time
    await_destroyed(seats["bern"])
    assert not town.custody.seats


@pytest.mark.parametrize("how", ["time", "withdraw", "leave"])
def test_a_veto_keeps_no_keys(
    town: Town, consortium: Consortium, tmp_path: Path, how: str
) -> None:
    """What else ends an appointment ends it under a veto, too."""
    vault = owner_vault(consortium, "ada", tmp_path / "v")
    town.entrust("ada", vault)
    vault.close()
    seat = town.custody.seats["ada"]
    for kind, party in (("veto", "bern"), (how, "ada")):
        if kind == "time":
            town.clock.now_s += 3600
            continue
        said = sign_statement(
            kind, consortium.agreement, town.identity(party), NOW_S + 1
        )
        town.custody.statements.admit(said)
    await_destroyed(seat)


def test_a_name_that_is_not_to_be_had(
    town: Town,
    consortium: Consortium,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever is told no has no keys there."""
    monkeypatch.setattr(sharedbrokerage, "DIAL_TIMEOUT_S", 0.2)
    vault = owner_vault(consortium, "ada", tmp_path / "v")
    with town.link("broker-ada"), pytest.raises(SealiftError):
        town.entrust("ada", vault)
    vault.close()
    assert not town.custody.seats
