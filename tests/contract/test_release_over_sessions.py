"""Key release over real attested sessions: the Protocols of release/ fit session/."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from sealift.attest.development import DevelopmentAttester
from sealift.crypto.keys import TOKEN
from sealift.crypto.sign import SigningKey
from sealift.errors import PeerError, PolicyError, SealiftError
from sealift.ids import Role
from sealift.release.broker.server import Broker
from sealift.release.client import (
    collect_release,
    request_consistency,
    request_head,
)
from sealift.release.log.heads import HeadStore, read_entries, verify_log
from sealift.session.endpoint import Endpoint, PeerPolicy
from sealift.session.session import Session, accept, connect
from tests.sim.owners import BrokerBox, make_broker
from tests.worlds.consortium import RUN, Consortium, make_consortium
from tests.worlds.memorytransport import memory_pair


@pytest.fixture(scope="module")
def consortium() -> Consortium:
    return make_consortium()


@pytest.fixture
def box(consortium: Consortium, tmp_path: Path) -> Iterator[BrokerBox]:
    box = make_broker(consortium, "ada", tmp_path)
    yield box
    box.close()


def accelerator(consortium: Consortium, attester: SigningKey) -> Endpoint:
    return Endpoint(
        role=Role.ACCELERATOR,
        name="accelerator-0",
        agreement=consortium.agreement.digest,
        attester=DevelopmentAttester(
            attester,
            role=Role.ACCELERATOR,
            code_bundle=consortium.agreement.code.digest,
        ),
    )


def party(consortium: Consortium, name: str, role: Role) -> Endpoint:
    return Endpoint(
        role=role,
        name=name,
        agreement=consortium.agreement.digest,
        identity=consortium.identities[name],
    )


def expect_party(consortium: Consortium, role: Role) -> PeerPolicy:
    keys = {entry.name: entry.sign for entry in consortium.agreement.parties}
    return PeerPolicy(roles=frozenset({role}), identities=keys, require_identity=True)


def expect_accelerator(consortium: Consortium) -> PeerPolicy:
    return PeerPolicy(
        roles=frozenset({Role.ACCELERATOR}),
        require_evidence=True,
        appraiser=consortium.verified().appraiser(),
    )


@contextmanager
def session_with(
    broker: Broker, consortium: Consortium, ours: Endpoint, policy: PeerPolicy
) -> Iterator[Session]:
    """A session with ada's broker, which serves in a thread."""
    here, there = memory_pair()
    theirs = party(consortium, "ada", Role.BROKER)

    def serve() -> None:
        began_s = time.monotonic()
        try:
            session = accept(there, theirs, policy)
        except PeerError:
            return
        except SealiftError as error:
            broker.record_refused_handshake(error, name="accelerator")
            return
        with session, suppress(SealiftError):
            broker.serve(session, 10.0, accepted_at_s=began_s)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with connect(here, ours, expect_party(consortium, Role.BROKER)) as session:
            yield session
    finally:
        thread.join(300)


def test_an_accelerator_collects_a_key(
    consortium: Consortium, box: BrokerBox, tmp_path: Path
) -> None:
    ours = accelerator(consortium, consortium.attester)
    policy = expect_accelerator(consortium)
    with session_with(box.broker, consortium, ours, policy) as session:
        verified = consortium.verified()
        key, logged = collect_release(
            session, verified, "ada-train", clock=lambda: 0.0, run=RUN
        )
        assert key.reveal(TOKEN) == consortium.keys["ada-train"].reveal(TOKEN)
        collect_release(session, verified, "ada-heldout", clock=lambda: 0.0, run=RUN)
        with pytest.raises(PolicyError, match="not-the-owner"):
            ask_for_bern(session, consortium)
        assert request_head(session).body.size == 4
    assert [entry.kind for entry in read_entries(tmp_path / "ada.log")] == [
        "agreement", "release", "release", "refusal",
    ]  # fmt: skip
    assert verify_log(tmp_path / "ada.log", logged.head).releases == 2


def ask_for_bern(session: Session, consortium: Consortium) -> None:
    """Ask ada's broker for bern's key, past our own check of whom to ask."""
    from sealift.release.broker.messages import BrokerRequest
    from sealift.release.client import ask_broker
    from sealift.release.grant import ReleaseRequest

    request = ReleaseRequest("bern-train", "train", bytes(32), RUN)
    ask_broker(session, BrokerRequest(release=request), 10.0)


def test_an_attester_that_nobody_named(
    consortium: Consortium, box: BrokerBox, tmp_path: Path
) -> None:
    """Refused in the handshake, and logged all the same."""
    ours = accelerator(consortium, SigningKey.generate())
    policy = expect_accelerator(consortium)
    with (
        pytest.raises(PeerError),
        session_with(box.broker, consortium, ours, policy) as session,
    ):
        session.receive(10.0)
    last = list(read_entries(tmp_path / "ada.log"))[-1]
    assert (last.kind, last.rule) == ("refusal", "attester-unknown")


def test_a_holder_reads_heads_and_proofs_and_no_keys(
    consortium: Consortium, box: BrokerBox, tmp_path: Path
) -> None:
    store = HeadStore(tmp_path / "heads.json")
    ours = party(consortium, "bern", Role.HOLDER)
    policy = expect_party(consortium, Role.HOLDER)
    with session_with(box.broker, consortium, ours, policy) as session:
        store.admit(request_head(session))
        with pytest.raises(PolicyError, match="role-refused"):
            collect_release(
                session, consortium.verified(), "ada-train", clock=lambda: 0.0, run=RUN
            )
        grown = request_head(session)
        assert grown.body.size == 2
        store.admit(
            grown,
            lambda log, first, second: request_consistency(session, first, second),
        )
        with pytest.raises(PolicyError, match="log-rolled-back"):
            request_consistency(session, 1, 9)
