"""Keys of one connection: gone when it ends."""

from __future__ import annotations

import threading
from contextlib import closing
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sealift.crypto.keys import TOKEN, SecretKey
from sealift.data.schedule.visits import Stop, VisitBatch
from sealift.errors import PeerError, SealiftError, UsageError
from sealift.events import discard
from sealift.release.agreement import KeyLease
from sealift.release.broker.messages import PassRequest, Refusal
from sealift.release.client import BrokerRefusedError
from sealift.release.log.heads import ShownHeads
from sealift.session.session import Session
from sealift.train.job import accelerator as module
from sealift.train.job import releasedkeys as keys_module
from sealift.train.job.accelerator import Accelerator
from sealift.train.job.leasekeeping import LeaseKeeper
from sealift.train.job.releasedkeys import ReleasedKeys
from sealift.train.ranks.rankedjob import RankedJob
from sealift.travel.accelerator.setup import ReleasedResource
from sealift.travel.settings import JobSettings, RunSettings
from sealift.travel.visit.messages import StartJob
from tests.unit.train.joints import resource
from tests.worlds.consortium import RUN


class Control:
    """A session with the orchestrator."""

    def __enter__(self) -> Session:
        return cast("Session", self)

    def __exit__(self, *exc: object) -> None:
        pass


def lost_after_collecting(monkeypatch: pytest.MonkeyPatch) -> SecretKey:
    """The key that an accelerator had when its connection was cut."""
    key = SecretKey.generate()
    keys = ReleasedKeys(*[cast("Any", None)] * 3, clock=lambda: 0.0, sink=print)
    served = Accelerator.__new__(Accelerator)
    link = SimpleNamespace(open=lambda *_parts, **_named: None)
    servers = SimpleNamespace(close=lambda: None)
    for name, value in {"_relay": link, "_keys": keys, "_shares": servers}.items():
        setattr(served, name, value)
    served._endpoint = served._agreement = cast("Any", None)

    def cut(_control: Session, _start: StartJob) -> None:
        keys.released["north"] = ReleasedResource(resource("north", 8), key)
        raise PeerError("cut")

    monkeypatch.setattr(served, "_serve", cut)
    monkeypatch.setattr(module, "connect", lambda *_parts: Control())
    monkeypatch.setattr(module, "expect_orchestrator", lambda _agreement: None)
    start = StartJob.__new__(StartJob)
    monkeypatch.setattr(module, "receive_message", lambda *_p, **_n: start)
    with pytest.raises(PeerError, match="cut"):
        served.serve()
    return key


def test_a_cut_takes_the_keys_along(monkeypatch: pytest.MonkeyPatch) -> None:
    key = lost_after_collecting(monkeypatch)
    with pytest.raises(UsageError, match="wiped"):
        key.reveal(TOKEN)
    monkeypatch.setattr(ReleasedKeys, "forget", lambda _self: None)  # mutant
    assert lost_after_collecting(monkeypatch).reveal(TOKEN)


def collected(
    monkeypatch: pytest.MonkeyPatch,
    rules: list[str],
    within_s: float,
    gone: list[SealiftError] | None = None,
) -> list[str]:
    """Which keys were asked for, of a broker that refuses one by each of these rules."""
    owned = [resource("north", 8), resource("north", 8, "heldout")]
    agreement = SimpleNamespace(
        holders=("north",), resources_of=lambda _owner: owned, agreement=None
    )
    agreement.agreement = agreement
    asked: list[str] = []

    def release(_session: object, _agreement: object, name: str, **_: object) -> object:
        asked.append(name)
        if gone:
            raise gone.pop()
        if name == "north-heldout" and rules:
            raise BrokerRefusedError(Refusal(rules.pop(0), "refused"))
        return SecretKey.generate(), None

    monkeypatch.setattr(keys_module, "meet_broker", lambda *_p, **_n: Control())
    monkeypatch.setattr(keys_module, "request_statements", lambda _s, known: known)
    monkeypatch.setattr(keys_module, "collect_release", release)
    monkeypatch.setattr(keys_module, "request_head", lambda _s: None)
    monkeypatch.setattr(keys_module, "PAUSE_S", 0.0)
    monkeypatch.setattr(ShownHeads, "show", lambda *_: None)
    parts = cast("Any", None), cast("Any", None), cast("Any", agreement)
    keys = ReleasedKeys(*parts, clock=lambda: 0.0, sink=discard)
    keys.collect(within_s)
    assert keys.owners == ("north",)
    return asked


def test_evidence_that_grew_old_in_the_midst_is_shown_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slow log is no refusal for good; keys that are here cost no other use."""
    both = ["north-train", "north-heldout"]
    assert collected(monkeypatch, ["evidence-old"], 9.0) == [*both, "north-heldout"]
    for rules, within_s in ((["evidence-old"], 0.0), (["level-refused"], 9.0)):
        with pytest.raises(BrokerRefusedError):
            collected(monkeypatch, rules, within_s)


def test_a_broker_may_come_back_and_a_relay_that_is_gone_may_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = ["north-train", "north-heldout"]
    away = [PeerError("away", code="unknown-peer")]
    assert collected(monkeypatch, [], 9.0, away) == ["north-train", *both]
    gone = [PeerError("gone", code="relay-gone")] * 2
    with pytest.raises(PeerError, match="gone"):
        collected(monkeypatch, [], 9.0, gone)
    assert len(gone) == 1, "it was asked once"


class Clock:
    """Seconds that pass only where a broker is dialled."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def counted(
    monkeypatch: pytest.MonkeyPatch,
    comes_s: float,
    *,
    lease: KeyLease | None = None,
    over: bool = False,
) -> list[PassRequest]:
    """What a broker counted that is away until then, of a rank's pass over ada's rows.

    Each dial takes five seconds; a broker that came back breaks the first session.
    """
    clock, asked, broken = Clock(), list[PassRequest](), list[Session]()
    lost = threading.Event()

    def meet(*_parts: object, **_named: object) -> Session:
        clock.now_s += 5.0
        if lease is not None and clock.now_s > lease.lease_s:
            assert lost.wait(60.0), "its watch sees that it ran out"
        if clock.now_s < comes_s:
            raise PeerError("away", code="unknown-peer")
        return cast("Session", SimpleNamespace(close=lambda: None))

    def count(session: Session, request: PassRequest) -> None:
        assert session not in broken, "asked in a session that broke"
        asked.append(request)
        if not broken:
            broken.append(session)
            raise PeerError("broken", code="peer-closed")

    monkeypatch.setattr(keys_module, "meet_broker", meet)
    monkeypatch.setattr(keys_module, "request_pass", count)
    monkeypatch.setattr(keys_module, "PAUSE_S", 0.0)
    keys = ReleasedKeys(*[cast("Any", None)] * 3, clock=clock, sink=discard)
    keys._run = RUN

    def unreachable(_owner: str) -> Session:
        raise PeerError("away", code="unknown-peer")

    leases = LeaseKeeper(
        unreachable,
        {} if lease is None else {"ada": lease},
        clock=clock,
        lost=lambda _error: lost.set(),
        left=lambda _owner, _error: lost.set(),
        sink=discard,
    )
    leases.begin("ada")
    job: Any = SimpleNamespace(
        plans=[
            [VisitBatch(0, "train", 0, (Stop(0, "ada", "ada-train", "train", 0, 10),))]
        ],
        rank=0,
        keys=keys,
        leases=leases,
        heartbeat=SimpleNamespace(over=over),
        settings=JobSettings(run=RunSettings(rejoin_s=50.0)),
    )
    job._waits = partial(RankedJob._waits, job)
    with closing(leases):
        RankedJob._count_pass(job, "train", 0)
    return asked


LEASE = KeyLease(lease_s=100.0, heartbeat_s=10.0)


@pytest.mark.parametrize(("lease", "most_s"), [(LEASE, 100.0), (None, 50.0)])
def test_a_pass_waits_for_a_broker_as_long_as_its_keys_live(
    monkeypatch: pytest.MonkeyPatch, lease: KeyLease | None, most_s: float
) -> None:
    """Without a lease: as long as for whoever was lost. It counts once, by its attempt."""
    first, again = counted(monkeypatch, most_s - 20.0, lease=lease)
    assert (first.visits, first.attempt) == (1, again.attempt)
    with pytest.raises(PeerError, match="away"):
        counted(monkeypatch, 9_000.0, lease=lease)


def test_nobody_waits_for_a_broker_once_this_start_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(PeerError, match="away"):
        counted(monkeypatch, 80.0, lease=LEASE, over=True)
