"""Whatever is said at a door is refused once, and the next honest asker is served.

Rows are messages, columns what a hostile peer makes of them. What is missing here stands
elsewhere: records and handshakes (property/test_session_machine, test_handshake), frames
of a visit and every kind of message at each of its points (test_t2_no_read), envelopes at
the relay (test_relay_strangers), how much of strangers' talk is logged
(test_release_strangers), what crosses a link's memory (test_link_tampering), honest
enrolment and renewal (test_broken_sessions, test_t1_lease).
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from sealift.attest.tpm.enrolment import EnrolmentRequest
from sealift.codec import decode, encode
from sealift.errors import MalformedError, SealiftError
from sealift.ids import Digest, Role
from sealift.release.agreement.statements import sign_statement
from sealift.release.broker import keyrelease as door
from sealift.release.broker.keyrelease import KeyReleases
from sealift.release.broker.messages import (
    BrokerAnswer,
    BrokerRequest,
    ConsistencyRequest,
    EnrolRequest,
    LeaseRequest,
    PassRequest,
)
from sealift.release.broker.server import Broker
from sealift.release.checkpoint import CheckpointRequest, Deposit, Fetch
from sealift.release.client import collect_release
from sealift.release.grant import ReleaseRequest
from tests.sim.brokertown import Town
from tests.sim.doors import MARK, SHARE, World
from tests.sim.owners import NOW_S, BrokerSide, broker_peer
from tests.sim.spoiling import require_clear, spoilt
from tests.worlds.consortium import RUN, make_consortium

KEYS = ("release", "checkpoint", "rows")  # who asks for these is in the log


# an owner's broker


@dataclass(frozen=True)
class Row:
    """One message to a broker.

    Attributes:
        before: What must come first in the session.
        early: The refusals before each of these.
        honest: The refusal of the honest one in this world; empty if it is answered.
        again: The refusal when it comes again; empty if it is answered.
        stranger: When its peer has no evidence, is another owner's broker, and works
            under another agreement.
    """

    make: Callable[[World], BrokerRequest]
    stranger: tuple[str, str, str]
    before: tuple[str, ...] = ()
    early: tuple[str, ...] = ()
    honest: str = ""
    again: str = ""


def keyed(name: str) -> Callable[[World], BrokerRequest]:
    def make(world: World) -> BrokerRequest:
        part, fresh = name.rsplit("-", 1)[1], secrets.token_bytes(32)
        return BrokerRequest(release=ReleaseRequest(name, part, fresh, RUN))  # type: ignore[arg-type]

    return make


def of_job(**asked: Any) -> Callable[[World], BrokerRequest]:
    return lambda world: BrokerRequest(checkpoint=CheckpointRequest(job="job", **asked))


def fetching(world: World) -> BrokerRequest:
    return of_job(fetch=Fetch(MARK, secrets.token_bytes(32)))(world)


def saying(world: World) -> BrokerRequest:
    cleo = world.consortium.identities["cleo"]
    said = sign_statement("leave", world.consortium.agreement, cleo, NOW_S)
    return BrokerRequest(statement=said)


def counting(world: World) -> BrokerRequest:
    """The same attempt each time: an answer that was lost counts once."""
    asked = PassRequest(run=RUN, purpose="train", visits=1, attempt=bytes(32))
    return BrokerRequest(rows=asked)


def asking(world: World) -> BrokerRequest:
    request = LeaseRequest(action="ask", instance=world.instance)
    return BrokerRequest(lease=request)


def always(**asked: Any) -> Callable[[World], BrokerRequest]:
    return lambda world: BrokerRequest(**asked)


PROOFLESS = ("evidence-missing", "role-refused", "other-agreement")
READER = ("evidence-missing", "", "other-agreement")  # other owners are readers
LEASE = ("evidence-missing", "evidence-missing", "other-agreement")
NOT_OURS = ("not-the-owner", "not-the-owner", "other-agreement")
ENROL = ("malformed", "malformed", "other-agreement")
SPENT = ("tpm-not-activated", "tpm-not-activated", "other-agreement")
HELD = ("release", "second")
JOB = (*HELD, "checkpoint.claim", "checkpoint.deposit", "checkpoint.commit")
NO_KEYS, NOT_NEXT = "share-before-keys", "checkpoint-number"
EARLY = (NO_KEYS, NO_KEYS, "instance-superseded", NOT_NEXT, NOT_NEXT)
HOST = EnrolmentRequest(
    attestation_key=bytes(99), endorsement_key=bytes(99), certificates=(bytes(99),)
)
BEGIN = EnrolRequest(begin=HOST)
ROWS = {
    "release": Row(keyed("ada-train"), PROOFLESS, again="challenge-replayed"),
    "checkpoint.claim": Row(of_job(claim=True), PROOFLESS, JOB[:2], EARLY[:2]),
    "checkpoint.deposit": Row(
        of_job(deposit=Deposit(MARK, SHARE)), PROOFLESS, JOB[:3], EARLY[:3]
    ),
    "checkpoint.commit": Row(of_job(commit=MARK), PROOFLESS, JOB[:4], EARLY[:4]),
    "checkpoint.fetch": Row(fetching, PROOFLESS, JOB, EARLY, again="challenge-replayed"),
    "checkpoint.finish": Row(of_job(finish=True), PROOFLESS, JOB, EARLY[:3]),
    "lease.prove": Row(
        always(lease=LeaseRequest(action="prove")), LEASE,
        honest="not-renewed", again="not-renewed",
    ),
    "lease.give-back": Row(always(lease=LeaseRequest(action="give-back")), LEASE),
    "lease.ask": Row(asking, NOT_OURS, honest="not-the-owner", again="not-the-owner"),
    "enrol.begin": Row(
        always(enrol=BEGIN), ENROL, honest="malformed", again="malformed"
    ),
    "enrol.answer": Row(
        always(enrol=EnrolRequest(answer=bytes(32))), SPENT,
        honest="tpm-not-activated", again="tpm-not-activated",
    ),
    "rows": Row(counting, PROOFLESS, ("release",), (NO_KEYS,)),
    "head": Row(always(head=True), READER),
    "consistency": Row(always(consistency=ConsistencyRequest(1, 1)), READER),
    "sighting": Row(always(sighting=True), READER),
    "statement": Row(saying, READER),
    "statements": Row(always(statements=True), READER),
}  # fmt: skip
EXTRA = {"second": keyed("ada-heldout")}


def test_every_message_to_a_broker_has_its_row() -> None:
    """A new one must be looked at here before anybody can say it."""
    hints = get_type_hints(LeaseRequest)
    parts = {
        "checkpoint": {each.name for each in fields(CheckpointRequest)} - {"job"},
        "lease": set(get_args(hints["action"])),
        "enrol": {each.name for each in fields(EnrolRequest)},
    }
    names = {each.name for each in fields(BrokerRequest)}
    whole = {f"{name}.{part}" for name in parts for part in parts[name]}
    assert whole | (names - set(parts)) == set(ROWS)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.box.close()


def say(world: World, side: BrokerSide, raw: bytes) -> BrokerAnswer:
    """What a broker answers: one thing, and clearly."""
    side.inbox.append(raw)
    with suppress(SealiftError):  # its session may end
        world.box.broker.serve(side, accepted_at_s=time.monotonic())
    assert len(side.outbox) == 1, "nothing was answered, or too much"
    answer = decode(BrokerAnswer, side.outbox.pop())
    if answer.refusal is not None:
        require_clear(answer.refusal.rule, answer.refusal.line)
    return answer


def rule_of(answer: BrokerAnswer) -> str:
    return answer.refusal.rule if answer.refusal else ""


def prepared(world: World, name: str) -> BrokerSide:
    """A session in which everything was said that comes first."""
    side = world.session().other
    for each in ROWS[name].before:
        make = EXTRA.get(each) or ROWS[each].make
        assert not rule_of(say(world, side, encode(make(world))))
    return side


def require_logged(world: World, name: str, before: int, *rules: str) -> None:
    if name.startswith(KEYS) and any(rules):
        assert world.rules()[before:] == [each for each in rules if each]


def require_served(world: World) -> None:
    assert world.release("ada-train")


def require_refused(world: World, name: str) -> None:
    """Each spoilt message: one refusal, one entry, and the session is over."""
    raw = encode(ROWS[name].make(world))
    for how, bad in spoilt(raw):
        before, side = len(world.rules()), world.session().other
        rule = rule_of(say(world, side, bad))
        assert rule, (name, how)
        assert world.rules()[before:] == [rule], (name, how)
    require_served(world)


@pytest.mark.parametrize("name", ROWS)
def test_what_is_no_message_is_refused_once(world: World, name: str) -> None:
    require_refused(world, name)


@pytest.mark.parametrize("name", ROWS)
def test_a_changed_byte_makes_no_fault(world: World, name: str) -> None:
    """Where it is another message, that one is answered."""
    raw = encode(ROWS[name].make(world))
    for at in range(0, len(raw), 1 + len(raw) // 25):
        changed = bytearray(raw)
        changed[at] ^= 1 << at % 7
        answer = say(world, world.session().other, bytes(changed))
        try:
            decode(BrokerRequest, bytes(changed))
        except MalformedError:
            assert rule_of(answer), bytes(changed)
    require_served(world)


@pytest.mark.parametrize("name", [each for each in ROWS if ROWS[each].early])
def test_before_what_must_come_first(world: World, name: str) -> None:
    row = ROWS[name]
    for step, code in zip(row.before, row.early, strict=False):
        before = len(world.rules())
        assert (
            rule_of(say(world, world.session().other, encode(row.make(world)))) == code
        )
        require_logged(world, name, before, code)
        make = EXTRA.get(step) or ROWS[step].make
        assert not rule_of(say(world, world.session().other, encode(make(world))))
    require_served(world)


@pytest.mark.parametrize("name", ROWS)
def test_said_again(world: World, name: str) -> None:
    row, side = ROWS[name], prepared(world, name)
    raw, before = encode(row.make(world)), len(world.rules())
    said = [rule_of(say(world, side, raw)) for _ in range(2)]
    assert said == [row.honest, row.again]
    require_logged(world, name, before, *said)
    require_served(world)


@pytest.mark.parametrize("name", ROWS)
def test_a_stranger_gets_nothing(world: World, name: str) -> None:
    side = prepared(world, name)
    raw, before = encode(ROWS[name].make(world)), len(world.rules())
    owner = broker_peer(world.consortium, "bern")
    strangers = (
        replace(side.peer, result=None),
        replace(owner, role=Role.BROKER),
        replace(side.peer, agreement=Digest.of(b"another")),
    )
    found = []
    for peer in strangers:
        found.append(rule_of(say(world, replace(side, peer=peer), raw)))
    assert tuple(found) == ROWS[name].stranger
    require_logged(world, name, before, *found)
    require_served(world)


def test_strangers_noise_is_not_logged_for_ever(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "MAX_UNPROVEN", 3)
    side = world.session().other
    side.peer = replace(side.peer, result=None)
    assert {rule_of(say(world, side, b"noise")) for _ in range(9)} == {"malformed"}
    assert world.rules() == ["malformed"] * 3
    require_served(world)


def dropped(self: Broker, error: MalformedError, session: Any) -> None:
    """As it was before: the session ended, and nobody was told why."""


def unlogged(self: KeyReleases, peer: Any, error: SealiftError) -> bool:
    return False


def escaping(self: BrokerSide, cls: Any, timeout_s: float | None = None) -> Any:
    return cls(**json.loads(self.inbox.popleft()))


@pytest.mark.parametrize(
    ("where", "what", "mutant"),
    [
        (Broker, "_refuse_unread", dropped),
        (KeyReleases, "refused", unlogged),
        (BrokerSide, "receive_message", escaping),
    ],
)
def test_a_door_that_fails_is_noticed(
    world: World, monkeypatch: pytest.MonkeyPatch, where: Any, what: str, mutant: Any
) -> None:
    monkeypatch.setattr(where, what, mutant)
    with pytest.raises((AssertionError, ValueError)):
        require_refused(world, "release")


def test_whoever_asks_understands_a_brokers_noise(world: World) -> None:
    """A broker that says anything at all gives no key and no share away for one."""
    answer = encode(
        say(world, world.session().other, encode(ROWS["release"].make(world)))
    )
    for _, bad in spoilt(answer):
        side = world.session()
        side.tamper = lambda raw, bad=bad: bad  # type: ignore[assignment,misc]
        with pytest.raises(SealiftError) as caught:
            collect_release(
                side, world.verified, "ada-train", clock=lambda: 0.0, run=RUN
            )
        require_clear(caught.value.code, str(caught.value))
    require_served(world)


def test_over_a_relay_the_next_one_is_served(tmp_path: Path) -> None:
    consortium, town = make_consortium(), Town(tmp_path)
    try:
        town.start(consortium, "ada")
        for bad in (b"", b"noise", b"[" * 5000):
            with town.session(consortium, "ada") as session:
                session.send(bad)
                answer = session.receive_message(BrokerAnswer, 10.0)
            assert rule_of(answer) == "malformed"
            assert town.collect(consortium, "ada") == "released"
    finally:
        town.close()
