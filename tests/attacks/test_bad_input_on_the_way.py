"""Whatever is said in a visit, or before a link, is refused once; the next one works.

Like test_bad_input_at_doors, for the other doors. Every reader of messages in the product
is named here, with where its bad input is tried.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from sealift import codec
from sealift.codec import encode
from sealift.errors import MalformedError
from sealift.feed import handover, receiving, sending
from sealift.feed.handover import FeedConsent, Proposal
from sealift.session.session import Session
from sealift.travel.visit import messages
from sealift.travel.visit.messages import (
    Cargo,
    Leaves,
    PathTaken,
    Present,
    Ready,
    Receipted,
    message_name,
    parse_message,
)
from tests.sim.hands import Hand, honest
from tests.sim.linked import LinkedParties, both, linked
from tests.sim.spoiling import SOURCE, require_clear, spoilt
from tests.sim.utterances import ANY, Draw, example
from tests.sim.visit_world import VisitWorld

# a visit: what the accelerator hears from a holder, and a holder from the accelerator

TO_ACCELERATOR = (Present, Leaves, PathTaken, Cargo)
TO_HOLDER = (Ready, Receipted)
Change = Callable[[bytes], list[bytes]]


class Liar:
    """A session in which messages of one kind become something else."""

    def __init__(
        self, session: Any, kind: type, change: Change, first: bytes = b""
    ) -> None:
        self._session, self._kind, self._change = session, kind, change
        self._first, self._heard = first, list[bytes]()
        self.said: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def _changed(self, raw: bytes) -> list[bytes]:
        head = [self._first] if self._first else []
        self._first = b""
        self.said.append(raw)
        about = json.loads(raw)["type"] == message_name(self._kind)
        return head + (self._change(raw) if about else [raw])

    def send(self, raw: bytes) -> None:
        for each in self._changed(raw) if self._kind in TO_ACCELERATOR else [raw]:
            self._session.send(each)

    def receive(self, timeout_s: float | None = None) -> bytes:
        if not self._heard:
            raw = self._session.receive(timeout_s)
            self._heard = self._changed(raw) if self._kind in TO_HOLDER else [raw]
        return self._heard.pop(0)


def lied(
    world: VisitWorld, kind: type, change: Change, first: bytes = b""
) -> tuple[Any, bytes]:
    """A visit in which somebody lies, and the message as it should have been."""
    liars: list[Liar] = []

    def bring(hand: Hand) -> Any:
        liars.append(Liar(hand.session, kind, change, first))
        hand.session = liars[0]  # type: ignore[assignment]
        return honest(hand)

    outcome = world.visit("ada", bring)
    about = (
        each for each in liars[0].said if json.loads(each)["type"] == message_name(kind)
    )
    return outcome, next(about, b"")


@pytest.mark.parametrize("kind", [*TO_ACCELERATOR, *TO_HOLDER])
def test_a_lie_in_a_visit_ends_it_and_no_other(tmp_path: Path, kind: type) -> None:
    with VisitWorld(tmp_path) as world:
        world.rules.max_visits = 10**6
        outcome, former = lied(world, kind, lambda raw: [raw])
        assert outcome.verified  # control
        ways: dict[str, Change] = {
            name: lambda raw, name=name: [dict(spoilt(raw))[name]]  # type: ignore[misc]
            for name, _ in spoilt(former)
        }
        ways["another visit's"] = lambda raw: [former]
        if kind in (Present, Leaves, PathTaken, Ready):
            ways["twice"] = lambda raw: [raw, raw]
        tries = [(name, change, b"") for name, change in ways.items()]
        if kind is not Present:
            tries.append(("first of all", lambda raw: [raw], former))
        for name, change, first in tries:
            if name == "another visit's" and kind not in (Present, Receipted):
                continue  # says the same in every visit
            outcome, _ = lied(world, kind, change, first)
            assert outcome.ended is not None, (name, outcome.error)
            assert outcome.receipt is None, name
            assert not outcome.verified or kind is Receipted, name
            error = outcome.holder_error
            assert error is not None, name
            require_clear(error.code, str(error))
            if not outcome.verified:
                require_clear(outcome.reason, outcome.ended.line)
            assert world.untouched()
        assert world.visit("ada").verified


# a device that is fed


@pytest.mark.parametrize("kind", [Proposal, FeedConsent])
def test_a_lie_before_a_link_ends_it_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type
) -> None:
    parties = LinkedParties(tmp_path)
    for module in (handover, receiving, sending):
        monkeypatch.setattr(module, "HANDSHAKE_S", 3.0)
    genuine, said = Session.send_message, list[bytes]()

    def send_message(self: Session, message: object) -> None:
        if type(message) is kind:
            said.append(encode(message))
        genuine(self, message)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "send_message", send_message)
        with linked(parties):
            pass
    for name, _ in spoilt(said[0]):

        def lie(self: Session, message: object, name: str = name) -> None:
            if type(message) is kind:
                self.send(dict(spoilt(encode(message)))[name])
            else:
                genuine(self, message)

        with monkeypatch.context() as patch:
            patch.setattr(Session, "send_message", lie)
            for error in both(parties, {}, {}):
                require_clear(error.code, str(error))
    with linked(parties) as (sender, receiver):
        assert sender.form == receiver.form


def escaping(genuine: Callable[..., Any]) -> Callable[..., Any]:
    """A parser whose errors are none of ours."""

    def parse(*args: Any, **more: Any) -> Any:
        try:
            return genuine(*args, **more)
        except MalformedError as error:
            raise ValueError(str(error)) from None

    return parse


def test_a_parsers_error_that_escapes_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "parse_named", escaping(messages.parse_named))
    with pytest.raises(AssertionError):
        test_a_lie_in_a_visit_ends_it_and_no_other(tmp_path, Cargo)
    monkeypatch.setattr(codec, "decode", escaping(codec.decode))
    with pytest.raises(ValueError, match=r"JSON|expected|bytes"):
        test_a_lie_before_a_link_ends_it_and_no_other(tmp_path, monkeypatch, Proposal)


# every reader of messages

READERS = {
    # in place of any answer; unit/travel/test_farewell: behind an orchestrator's last word
    "travel/visit/messages": {"Failed", "Output"},
    # test_bad_input_at_doors
    "release/broker/server": {"BrokerRequest"},
    "release/client": {"BrokerAnswer"},
    # above
    "feed/handover": {"FeedConsent", "Proposal"},
    "travel/accelerator/visit": {"Present", "Leaves", "PathTaken", "Cargo"},
    # test_messages, test_door: signed by its party, else refused
    "travel/orchestrator/sessions": {"Said"},
    "travel/holder/visit": {"Ready", "Receipted", "VisitPhase", "Credit"},
    # test_t2_no_read, test_visit_machine: what comes among the frames
    "travel/visit/errors": {"Failed"},
    # below, and unit/travel/test_holder_job, test_meeting: from the operator or a party
    "travel/holder/jobs": {"Granted", "Finished"},
    "travel/broker": {"Finished"},
    "travel/notify": {"Said"},
    # below, and test_hosting_machine: orchestrator and accelerator
    "train/job/accelerator": {"StartJob", "Finished"},
    "train/ranks/rank": {"StartJob", "Finished", "Failed"},
    "train/ranks/rankedjob": {"OutputKept"},
    "travel/accelerator/visits": {
        "OfferVisit", "Granted", "Withdrawn", "WorkVisits", "FinishJob", "OutputKept", "Said",
    },
    # test_meetings, unit/meet/test_door: whoever dials the host's port, and a host;
    # test_later_runs, test_fetched_assets: what is asked for later, and in pieces
    "meet/connection": {
        "Arrive", "Ask", "Bring", "Agree", "Decline", "Sign", "Propose", "AskRun", "AskAsset",
        "Welcome", "Wait", "BringCard", "Read", "Check", "Signed", "Over", "Run", "AssetPiece",
    },
    "travel/orchestrator/job": {"JobReady", "Output", "JobFinished", "Departed", "Failed"},
    "travel/orchestrator/visits": {
        "BufferOffered", "VisitPhase", "VisitLoaded", "VisitEnded", "Departed",
        "Failed", "Output",
    },
}  # fmt: skip


def test_every_reader_of_messages_is_known() -> None:
    """A door that reads a new message is looked at here first."""
    found: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        module = path.relative_to(SOURCE).with_suffix("").as_posix()
        text = path.read_text()
        if "_message(" in text and not module.startswith("demo/"):
            kinds = set(kinds_read(module, ast.parse(text)))
            found |= {module: kinds} if kinds else {}
    assert found == READERS


def kinds_read(module: str, tree: ast.AST) -> Iterator[str]:
    calls = (each for each in ast.walk(tree) if isinstance(each, ast.Call))
    for call in calls:
        called = getattr(call.func, "id", getattr(call.func, "attr", ""))
        if called not in ("receive_message", "parse_message"):
            continue
        names = (part for each in call.args for part in ast.walk(each))
        for name in (each.id for each in names if isinstance(each, ast.Name)):
            if name.startswith("_") or name.isupper():  # several, or a number
                home = import_module("sealift." + module.replace("/", "."))
                found = getattr(home, name)
                kinds = found if isinstance(found, tuple) else ()
                yield from (kind.__name__ for kind in kinds)
            elif name[:1].isupper():
                yield name


@pytest.mark.parametrize(
    "kind", [each for each in ANY if each not in (Present, Receipted)]
)
def test_no_spoilt_message_of_a_job_is_read(kind: type) -> None:
    """What orchestrator, accelerators and holders read, they read by this one door."""
    draw = Draw(kind.__name__)
    made = next(filter(None, (example(kind, draw) for _ in range(50))), None)
    raw = encode({"type": message_name(kind), "body": made})
    assert parse_message(raw, (kind,)) == made
    for _, bad in spoilt(raw):
        with pytest.raises(MalformedError) as caught:
            parse_message(bad, (kind,))
        require_clear(caught.value.code, str(caught.value))
