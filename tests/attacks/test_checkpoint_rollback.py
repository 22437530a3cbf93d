"""Going back to an older checkpoint, planting one, keeping a copy (rules H14 and C9).

Each defence is taken away once to show that the attack is a real one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sealift.codec import decode, encode
from sealift.crypto.keys import TOKEN, SecretKey
from sealift.crypto.sign import PublicKey, SigningKey
from sealift.errors import IntegrityError, PolicyError, RefusedError, StaleError
from sealift.release import checkpointclient as shares
from sealift.release.broker.checkpoints import CheckpointKeeper
from sealift.release.broker.messages import BrokerAnswer
from sealift.release.checkpoint import CheckpointMark, ShareRelease
from sealift.release.checkpointclient import CheckpointLedger, Shares
from sealift.release.database import copy_database
from sealift.release.log.auditlog import APPLICATION_ID as LOG
from sealift.release.log.heads import HeadStore, ShownHeads
from sealift.release.vault.file import APPLICATION_ID as VAULT
from tests.sim.checkpoint_world import JOB, CheckpointWorld
from tests.worlds.consortium import make_consortium

CONSORTIUM = make_consortium(("ada", "bern"))
PLANTED = bytes(range(32))


@pytest.fixture
def world() -> Iterator[CheckpointWorld]:
    world = CheckpointWorld(CONSORTIUM, ("ada", "bern"))
    yield world
    world.close()


def recorded(
    world: CheckpointWorld, count: int, heads: ShownHeads | None = None
) -> CheckpointLedger:
    """An accelerator that recorded so many checkpoints."""
    ledger = world.ledger(heads=heads)
    ledger.claim()
    for _ in range(count):
        ledger.record(*world.seal())
    return ledger


def copy(world: CheckpointWorld, *names: str) -> Path:
    place = world.folder / "copy"
    place.mkdir()
    for name in names:
        kind = LOG if name.endswith(".log") else VAULT
        copy_database(world.folder / name, place / name, kind)
    return place


def put_back(world: CheckpointWorld, owner: str, place: Path) -> None:
    world.boxes[owner].close()
    for path in place.iterdir():
        shutil.copy(path, world.folder)
    world.open(owner)


# an older checkpoint does not open


def test_the_share_of_an_older_one_is_gone(world: CheckpointWorld) -> None:
    ledger = recorded(world, 1)
    old = ledger._mark
    assert old is not None
    assert world.opens(ledger, old)
    ledger.record(*world.seal())
    with pytest.raises(StaleError) as caught:
        raise_rule(lambda: ledger.open_key(old))
    assert caught.value.code == "checkpoint-number"


def raise_rule(ask: Callable[[], object]) -> None:
    """The broker's refusal, as the error that its rule stands for."""
    try:
        ask()
    except PolicyError as error:
        raise StaleError(error.what, code=error.code) from None


def test_mutant_that_keeps_old_shares_opens_it(
    world: CheckpointWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: a broker that deletes nothing and releases what is asked for."""
    ledger = recorded(world, 1)
    old = ledger._mark
    assert old is not None
    kept = {
        owner: box.vault.checkpoints.fetch(key_of(world), old)
        for owner, box in world.boxes.items()
    }
    ledger.record(*world.seal())

    def release(desk, key, fetch, status, asker):  # type: ignore[no-untyped-def]
        return honest(desk, key, fetch, replace(status, committed=old), asker)

    honest = CheckpointKeeper._release
    monkeypatch.setattr(CheckpointKeeper, "_release", release)
    for owner, box in world.boxes.items():
        monkeypatch.setattr(
            box.broker._checkpoints._store,
            "fetch",
            lambda key, mark, owner=owner: kept[owner],
            raising=True,
        )
    assert world.opens(ledger, old)


def key_of(world: CheckpointWorld):  # type: ignore[no-untyped-def]
    from sealift.release.vault.checkpoints import JobKey

    return JobKey(world.consortium.agreement.digest, JOB)


def test_deleted_shares_leave_the_file(world: CheckpointWorld) -> None:
    ledger = recorded(world, 1)
    query = "SELECT wrapped FROM shares"
    connection = world.boxes["ada"].vault._file.connection
    wrapped = connection.execute(query).fetchone()[0]

    def written() -> bytes:
        return b"".join(path.read_bytes() for path in world.folder.glob("ada.vault*"))

    assert wrapped in written()  # the search works
    ledger.record(*world.seal())
    assert wrapped not in written()
    last = connection.execute(query).fetchone()[0]
    ledger.finish()
    assert last not in written()


# a broker that is put back to a copy


def test_a_vault_put_back_is_noticed_by_its_own_log(world: CheckpointWorld) -> None:
    recorded(world, 1)
    place = copy(world, "ada.vault")
    recorded(world, 1)
    put_back(world, "ada", place)
    with pytest.raises(PolicyError, match="the vault of this broker") as caught:
        world.ledger().claim()
    assert caught.value.code == "checkpoint-rolled-back"


def test_a_log_put_back_is_noticed_by_its_own_vault(world: CheckpointWorld) -> None:
    recorded(world, 1)
    place = copy(world, "ada.log")
    recorded(world, 1)
    put_back(world, "ada", place)
    with pytest.raises(PolicyError, match="the log of this broker") as caught:
        world.ledger().claim()
    assert caught.value.code == "checkpoint-rolled-back"


def test_both_put_back_are_noticed_by_the_others(world: CheckpointWorld) -> None:
    recorded(world, 1)
    place = copy(world, "ada.log", "ada.vault")
    recorded(world, 1)
    put_back(world, "ada", place)
    with pytest.raises(StaleError, match="the broker of ada") as caught:
        world.ledger().claim()
    assert caught.value.code == "checkpoint-rolled-back"


def test_all_put_back_are_noticed_by_a_head_that_was_kept(
    world: CheckpointWorld,
) -> None:
    """No broker can tell; whoever saw a head that covers checkpoint 2 can."""
    recorded(world, 1)
    place = copy(world, "ada.log", "ada.vault", "bern.log", "bern.vault")
    shown = ShownHeads()
    recorded(world, 1, shown)
    heads = HeadStore(world.folder / "heads.json")
    for head in shown():
        heads.admit(head)
    for box in world.boxes.values():
        box.close()
    for path in place.iterdir():
        shutil.copy(path, world.folder)
    for owner in world.owners:
        world.open(owner)
    late = ShownHeads()
    again = world.ledger(heads=late)
    again.claim()  # goes back to checkpoint 1
    again.record(*world.seal())

    def prove(log: PublicKey, first: int, second: int) -> tuple[bytes, ...]:
        box = next(b for b in world.boxes.values() if b.log.head().body.log == log)
        return box.log.consistency(first, second)

    for head in late():
        with pytest.raises(IntegrityError) as caught:
            heads.admit(head, prove)
        assert caught.value.code in ("log-forked", "log-rolled-back")


# two accelerators at once


def test_the_newer_one_takes_over(world: CheckpointWorld) -> None:
    first = recorded(world, 1)
    second = world.ledger()
    second.claim()
    for act in (lambda: first.record(*world.seal()), first.finish, first.claim):
        with pytest.raises(PolicyError) as caught:
            act()
        assert caught.value.code == "instance-superseded"
    assert second.record(*world.seal()).number == 2


def test_half_taken_over_neither_goes_on(world: CheckpointWorld) -> None:
    """Each claimed one broker last: no checkpoint of either can count."""
    keys = {name: SigningKey.generate().public_key for name in ("one", "two")}
    ledgers = {name: world.ledger(key) for name, key in keys.items()}
    for name, owner in (
        ("one", "ada"),
        ("two", "ada"),
        ("two", "bern"),
        ("one", "bern"),
    ):
        world.shares(owner, keys[name]).claim()
    for ledger in ledgers.values():
        with pytest.raises(PolicyError) as caught:
            ledger.record(*world.seal())
        assert caught.value.code == "instance-superseded"
    assert all("committed" not in world.held(owner) for owner in world.owners)


def test_without_taking_over_two_would_write_one_history(
    world: CheckpointWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: brokers that let anybody write mix two runs."""
    first = recorded(world, 1)
    second = world.ledger()
    second.claim()
    monkeypatch.setattr(CheckpointKeeper, "_require_worker", lambda *args: None)
    first.record(*world.seal())
    assert second._last == 1  # it knows nothing of the other's checkpoint 2
    with pytest.raises(PolicyError) as caught:
        second.record(*world.seal())
    assert caught.value.code == "checkpoint-number"


def test_only_accelerators_of_the_agreement_are_served(world: CheckpointWorld) -> None:
    ledger = recorded(world, 1)
    mark = ledger._mark
    assert mark is not None
    wire = world.wire("ada", SigningKey.generate().public_key)
    wire.side.peer = replace(wire.side.peer, result=None)
    asked = Shares(wire, CONSORTIUM.verified(), "ada", job=JOB, clock=lambda: 0.0)
    for act in (asked.claim, lambda: asked.fetch(mark), asked.finish):
        with pytest.raises(PolicyError, match="evidence-missing"):
            act()
    refusals = [e for e in world.entries("ada") if e.kind == "checkpoint-refusal"]
    assert [entry.rule for entry in refusals] == ["evidence-missing"] * 3
    assert world.opens(ledger, mark)


# a planted share


def test_planted_share_is_refused(world: CheckpointWorld) -> None:
    caught = try_planting(world)
    assert caught.code == "release-unsigned"


def test_mutant_without_the_signature_takes_it(
    world: CheckpointWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control."""
    monkeypatch.setattr(shares, "verify_owner", lambda *args: None)
    with pytest.raises(AssertionError, match="not refused"):
        try_planting(world)


def try_planting(world: CheckpointWorld) -> RefusedError:
    """Somebody between puts a share of its own in the place of ada's."""
    instance = SigningKey.generate().public_key
    ledger = world.ledger(instance)
    ledger.claim()
    mark = ledger.record(*world.seal())
    wire = world.wire("ada", instance)

    def plant(raw: bytes) -> bytes:
        answer = decode(BrokerAnswer, raw)
        assert answer.share is not None
        sealed = wire.side.peer.hpke.seal(encode(answer.share.info), PLANTED)
        forged = resigned(answer.share, sealed)
        return encode(replace(answer, share=forged))

    wire.tamper = plant
    asked = Shares(wire, CONSORTIUM.verified(), "ada", job=JOB, clock=lambda: 0.0)
    try:
        share, _ = asked.fetch(mark)
    except RefusedError as error:
        return error
    assert share.reveal(TOKEN) == PLANTED
    raise AssertionError("not refused")


def resigned(share: ShareRelease, sealed: bytes) -> ShareRelease:
    from sealift.crypto.hash import sha256
    from sealift.crypto.keys import Label

    message = sealed + sha256(encode(share.info))
    stranger = SigningKey.generate()
    signature = stranger.sign(Label.CHECKPOINT_SHARE, message)
    return replace(share, sealed=sealed, signature=signature)


def test_a_share_for_another_checkpoint_is_refused(world: CheckpointWorld) -> None:
    """The answer to one request does not answer another one."""
    instance = SigningKey.generate().public_key
    ledger = world.ledger(instance)
    ledger.claim()
    mark = ledger.record(*world.seal())
    first = world.wire("ada", instance)
    seen: list[bytes] = []
    first.tamper = lambda raw: (seen.append(raw), raw)[1]
    Shares(first, CONSORTIUM.verified(), "ada", job=JOB, clock=lambda: 0.0).fetch(mark)
    second = world.wire("ada", instance)
    second.tamper = lambda raw: seen[0]
    asked = Shares(second, CONSORTIUM.verified(), "ada", job=JOB, clock=lambda: 0.0)
    with pytest.raises(StaleError) as caught:
        asked.fetch(mark)
    assert caught.value.code == "release-foreign"


def test_one_share_alone_is_not_the_key(world: CheckpointWorld) -> None:
    instance = SigningKey.generate().public_key
    ledger = world.ledger(instance)
    ledger.claim()
    mark = ledger.record(*world.seal())
    for owner in world.owners:
        share, _ = world.shares(owner, instance).fetch(mark)
        assert share.reveal(TOKEN) != world.keys[mark.sealed]
    assert world.opens(ledger, mark)


def test_a_key_split_without_this_owner_is_refused(world: CheckpointWorld) -> None:
    instance = SigningKey.generate().public_key
    world.give_keys("ada", instance)
    asked = world.shares("ada", instance)
    asked.claim()
    for split in (("bern",), ("ada", "zoe")):
        mark = CheckpointMark(1, world.seal()[0], split)
        with pytest.raises(PolicyError, match="checkpoint-split"):
            asked.deposit(mark, SecretKey.generate())
