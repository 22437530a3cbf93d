"""N1: a second way to a secret, laxer than the first.

Every door is tried with what the owner's rule refuses, beside the control that it opens as
agreed; and once with a decision that says yes to all, to show that what refuses is the one
decision that the door asks. Rule by rule: ``tests/unit/release/test_decision.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from sealift.attest.level import Level
from sealift.crypto.keys import TOKEN, SecretKey
from sealift.crypto.sign import SigningKey
from sealift.errors import PolicyError, SealiftError
from sealift.events import Event
from sealift.feed import terms
from sealift.ids import Role
from sealift.release.agreement.statements import save_statement, sign_statement
from sealift.release.broker.keyrelease import KeyReleases
from sealift.release.facts import ReleaseKind
from sealift.release.log.auditlog import AuditLog
from sealift.travel.holder import jobs as holder_jobs
from sealift.travel.holder.visit import Provisioning
from sealift.travel.holder.watches import PartyWatch
from tests.sim.doors import DOORS, MARK, OUT, SHARE, World, at_level
from tests.sim.hands import Hand
from tests.sim.linked import LinkedParties, Other, linked
from tests.sim.owners import SimPeer
from tests.sim.visit_world import VisitWorld

FORM_OF_BATCH = {"x": np.ones((4, 3), np.float32), "y": np.zeros(4, np.int64)}


# what every door refuses


def after(seconds: float, world: World) -> None:
    world.now_s += seconds


def peer(change: Callable[[SimPeer], SimPeer], world: World) -> None:
    world.spoilt = change


def says(kind: Any, who: str, world: World) -> None:
    identity = world.consortium.identities[who]
    agreement = world.consortium.agreement
    said = sign_statement(kind, agreement, identity, world.now_s)
    save_statement(said, world.statements)


SPOILS: dict[str, tuple[Callable[[World], None], str]] = {
    "after the resource's time": (partial(after, 60), "resource-expired"),
    "after the agreement's end": (partial(after, 200), "agreement-expired"),
    "below the owner's level": (
        partial(peer, lambda each: at_level(each, Level.ATTESTED_HOST)),
        "owner-level-refused",
    ),
    "at no agreed level": (
        partial(peer, lambda each: at_level(each, Level.DEVELOPMENT)),
        "level-refused",
    ),
    "without evidence": (
        partial(peer, lambda each: replace(each, result=None)),
        "evidence-missing",
    ),
    "a holder": (
        partial(peer, lambda each: replace(each, role=Role.HOLDER)),
        "role-refused",
    ),
    "after a veto": (partial(says, "veto", "bern"), "agreement-vetoed"),
    "after ada left": (partial(says, "leave", "ada"), "owner-left"),
}
EVERYWHERE = [
    pytest.param(kind, spoil, id=f"{kind}, {spoil}")
    for kind in ReleaseKind
    for spoil in SPOILS
]


@pytest.fixture
def fake_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder's session is a stand-in, which is opened like a real one."""

    class Opened:
        def __init__(self, circuit: Any, *_: Any) -> None:
            self._session = circuit.session

        def __enter__(self) -> Any:
            return self._session

        def __exit__(self, *_: object) -> None:
            return None

    monkeypatch.setattr(holder_jobs, "connect", Opened)


def prepared(kind: ReleaseKind, folder: Path) -> World:
    """What is asked for is there, and was agreed on."""
    world = World(folder, serves=kind is ReleaseKind.MODEL_KEY)
    if kind is ReleaseKind.CHECKPOINT_SHARE:
        for resource in ("ada-train", "ada-heldout"):
            world.release(resource)
        world.shares().claim()
        world.shares().deposit(MARK, SecretKey(SHARE))
        world.shares().commit(MARK)
    if kind is ReleaseKind.PASSES:
        world.release("ada-train")
    return world


def outcome(kind: ReleaseKind, world: World) -> str:
    """``out``, or the rule that refused, which a broker's log and answer name."""
    if kind is ReleaseKind.MODEL_KEY:
        asking: Callable[[World], object] = lambda each: each.release("ada-train")  # noqa: E731
    else:
        asking = DOORS[kind][0]
    try:
        asking(world)
    except SealiftError as error:
        if error.code != "release-refused":
            return error.code
        told = str(error)
    else:
        return OUT
    rule = world.rules()[-1]
    assert f"[{rule}]" in told
    return rule


@pytest.mark.usefixtures("fake_connection")
@pytest.mark.parametrize(("kind", "spoil"), EVERYWHERE)
def test_every_door_refuses_what_the_owner_does_not_allow(
    kind: ReleaseKind, spoil: str, tmp_path: Path
) -> None:
    world = prepared(kind, tmp_path)
    assert outcome(kind, world) == OUT  # control
    break_it, code = SPOILS[spoil]
    break_it(world)
    assert outcome(kind, world) == code
    world.box.close()


@pytest.mark.usefixtures("fake_connection")
@pytest.mark.parametrize(("kind", "spoil"), EVERYWHERE)
def test_what_refuses_is_the_decision_that_the_door_asks(
    kind: ReleaseKind, spoil: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutants: each door without its question, everything leaves."""
    world = prepared(kind, tmp_path)
    SPOILS[spoil][0](world)
    monkeypatch.setattr(DOORS[kind][1], "decide", lambda ask, state: None)
    # What hangs up on everybody once our part has ended; it looks at home, not at them.
    monkeypatch.setattr(PartyWatch, "require_staying", lambda own: None)
    # What is asked once more when it was logged.
    monkeypatch.setattr(KeyReleases, "require_still", lambda *_: None)
    assert outcome(kind, world) == OUT
    world.box.close()


def test_every_kind_has_its_door_here() -> None:
    assert set(DOORS) == set(ReleaseKind)


def test_a_share_goes_where_the_keys_went(tmp_path: Path) -> None:
    """Uses are counted once per key; without one nothing that was made of rows leaves."""
    world = prepared(ReleaseKind.CHECKPOINT_SHARE, tmp_path)
    first, world.instance = world.instance, SigningKey.generate().public_key
    for _ in range(2):
        with pytest.raises(PolicyError, match="share-before-keys"):
            world.shares().claim()
        world.release("ada-train")  # one of ada's two
    world.release("ada-heldout")
    world.shares().claim()
    found, _ = world.shares().fetch(MARK)
    assert found.reveal(TOKEN) == SHARE
    world.instance = first
    with pytest.raises(PolicyError, match="instance-superseded"):
        world.shares().fetch(MARK)
    world.box.close()


def test_a_revoked_instance_gets_nothing_and_the_log_says_so(tmp_path: Path) -> None:
    world = prepared(ReleaseKind.CHECKPOINT_SHARE, tmp_path)
    world.box.broker.leases.revoke(world.instance, "ima-not-allowed")
    assert outcome(ReleaseKind.DATA_KEY, world) == "lease-revoked"
    assert outcome(ReleaseKind.CHECKPOINT_SHARE, world) == "lease-revoked"
    assert world.rules()[-2:] == ["lease-revoked"] * 2
    world.box.close()


@pytest.mark.usefixtures("fake_connection")
def test_rows_go_to_nobody_whom_our_broker_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    for standing, said in (("ima-not-allowed", "lease-revoked"), ("", OUT)):
        visit = nullcontext(lambda standing=standing: standing)
        monkeypatch.setattr(PartyWatch, "visit", lambda *_, visit=visit: visit)
        assert outcome(ReleaseKind.ROWS, world) == said
    world.box.close()


def test_rows_are_asked_for_before_each_frame(tmp_path: Path) -> None:
    """A real visit: after the third frame the owner's rule says no."""
    for allowed, frames in ((3, 3), (10**6, None)):
        sent: list[Event] = []

        def allow(sent: list[Event] = sent, allowed: int = allowed) -> None:
            if len([e for e in sent if e.kind == "holder.frame"]) >= allowed:
                raise PolicyError("over", code="agreement-expired")

        def bring(
            hand: Hand,
            allow: Callable[[], None] = allow,
            sent: list[Event] = sent,
        ) -> Any:
            return Provisioning(
                hand.held,
                hand.signed,
                clock=hand.clock,
                check_heads=lambda heads: None,
                require_allowed=allow,
                sink=sent.append,
            ).provision(hand.session)

        folder = tmp_path / str(allowed)
        folder.mkdir()
        with VisitWorld(folder) as world:
            outcome_ = world.visit("ada", bring)
        count = len([each for each in sent if each.kind == "holder.frame"])
        assert count == frames if frames else outcome_.verified


def test_rows_are_asked_for_once_there_is_room(tmp_path: Path) -> None:
    """A slow accelerator: the owner leaves while the second frame waits for a place."""
    left: list[bool] = []
    sent: list[Event] = []

    def allow() -> None:
        if left:
            raise PolicyError("left", code="owner-left")

    def bring(hand: Hand) -> Any:
        provisioning = Provisioning(
            hand.held,
            hand.signed,
            clock=hand.clock,
            check_heads=lambda heads: None,
            require_allowed=allow,
            sink=sent.append,
        )
        way = provisioning._way

        def slow(*parts: Any) -> Any:
            found = way(*parts)
            room = found.room

            def wait(frame_bytes: int) -> memoryview:
                if any(each.kind == "holder.frame" for each in sent):
                    left.append(True)
                return room(frame_bytes)

            found.room = wait
            return found

        provisioning._way = slow  # type: ignore[method-assign]
        return provisioning.provision(hand.session)

    with VisitWorld(tmp_path) as world:
        assert not world.visit("ada", bring).verified
    assert [each.kind for each in sent].count("holder.frame") == 1


def test_a_fed_device_is_asked_about_before_each_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with linked(LinkedParties(tmp_path)) as (sender, receiver):
        got = Other(receiver.receive)
        sender.send(FORM_OF_BATCH)  # control
        got.join()

        def refuse(ask: object, state: object) -> NoReturn:
            raise PolicyError("ended", code="agreement-expired")

        monkeypatch.setattr(terms, "decide", refuse)
        for send in (sender.send, lambda batch: sender.send_ahead([batch])):
            with pytest.raises(PolicyError) as caught:
                send(FORM_OF_BATCH)
            assert caught.value.code == "agreement-expired"
        sender.close()


def test_a_batch_that_waited_sealed_is_asked_about_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was packed when it might leave, and would leave when it may not any more."""
    allowed = iter((True, True, True))  # both are packed, and the first may leave

    def decide(ask: object, state: object) -> None:
        if not next(allowed, False):
            raise PolicyError("ended", code="owner-left")

    with linked(LinkedParties(tmp_path)) as (sender, receiver):
        monkeypatch.setattr(terms, "decide", decide)
        got = Other(receiver.receive)
        with pytest.raises(PolicyError) as caught:
            sender.send_ahead([FORM_OF_BATCH, FORM_OF_BATCH])
        got.join()
        assert (caught.value.code, sender.num_sent) == ("owner-left", 1)
        sender.close()


@pytest.mark.parametrize(
    "kind", [ReleaseKind.DATA_KEY, ReleaseKind.MODEL_KEY, ReleaseKind.CHECKPOINT_SHARE]
)
def test_a_statement_that_comes_while_it_is_logged_is_obeyed(
    tmp_path: Path, kind: ReleaseKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Syncing takes its time; whoever left was told that nothing goes any more."""
    world = prepared(kind, tmp_path)
    assert outcome(kind, world) == OUT  # control
    append = AuditLog.append

    def slow(log: AuditLog, entry: Any) -> Any:
        says("leave", "ada", world)
        return append(log, entry)

    monkeypatch.setattr(AuditLog, "append", slow)
    assert outcome(kind, world) == "owner-left"
