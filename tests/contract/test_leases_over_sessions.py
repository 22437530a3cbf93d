"""Leases over live sessions: prove, fail, fall silent; and what a holder hears of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from sealift.attest import Evidence
from sealift.attest.development import DevelopmentAttester
from sealift.crypto.sign import PublicKey, SigningKey
from sealift.errors import (
    PeerError,
    PolicyError,
    RefusedError,
    SealiftError,
    StaleError,
)
from sealift.ids import Digest, Role
from sealift.release.agreement import KeyLease, References, ReleaseRule
from sealift.release.broker.server import Broker
from sealift.release.client import (
    ask_lease,
    collect_release,
    give_back_lease,
    prove_lease,
    request_head,
)
from sealift.release.decision import GRACE_S
from sealift.release.log.heads import read_entries
from sealift.session.endpoint import Endpoint, PeerPolicy
from sealift.session.session import Session, accept, connect
from sealift.travel.holder.watches import LeaseWatch
from tests.sim.owners import BrokerBox, make_broker, start_broker
from tests.sim.watching import watching
from tests.worlds.consortium import RUN, Consortium, make_consortium
from tests.worlds.memorytransport import memory_pair

BEAT_S = 1.0
CLEAN = SigningKey.generate()
LASTS_S = 2 * BEAT_S
LEASE = ReleaseRule(lease_s=LASTS_S, heartbeat_s=BEAT_S, max_uses=3)
TERMS = KeyLease(lease_s=LASTS_S, heartbeat_s=BEAT_S)


@pytest.fixture(scope="module")
def consortium() -> Consortium:
    consortium = make_consortium()
    resources = tuple(
        replace(entry, rule=LEASE) for entry in consortium.agreement.resources
    )
    references = References((consortium.attester.public_key, CLEAN.public_key))
    agreement = replace(
        consortium.agreement, resources=resources, references=references
    )
    return replace(consortium, agreement=agreement)


@pytest.fixture
def box(consortium: Consortium, tmp_path: Path) -> Iterator[BrokerBox]:
    box = make_broker(consortium, "ada", tmp_path)
    with watching(box.broker.leases.look):
        yield box
    box.close()


class Host:
    """Attests; ``spoil`` makes its further evidence that of other code."""

    def __init__(self, consortium: Consortium) -> None:
        self._attester = consortium.attester
        self._code = consortium.agreement.code.digest

    def borrow(self, attester: SigningKey) -> None:
        self._attester = attester

    def spoil(self) -> None:
        self._code = Digest.of(b"tampered")

    def collect(self, bound: bytes) -> Evidence:
        attester = DevelopmentAttester(
            self._attester, role=Role.ACCELERATOR, code_bundle=self._code
        )
        return attester.collect(bound)


@dataclass
class Line:
    """Opens sessions with ada's broker, each served in a thread."""

    consortium: Consortium
    broker: Broker

    def endpoint(self, role: Role, name: str, **proof: Any) -> Endpoint:
        agreement = self.consortium.agreement.digest
        return Endpoint(role=role, name=name, agreement=agreement, **proof)

    @contextmanager
    def accelerator(
        self, host: Host, ours: Endpoint | None = None
    ) -> Iterator[Session]:
        ours = ours or self.endpoint(Role.ACCELERATOR, "accelerator-0", attester=host)
        policy = PeerPolicy(
            roles=frozenset({Role.ACCELERATOR}),
            require_evidence=True,
            appraiser=self.consortium.verified().appraiser(),
        )
        with self._session(ours, policy) as session:
            yield session

    @contextmanager
    def holder(self, name: str = "ada") -> Iterator[Session]:
        identity = self.consortium.identities[name]
        ours = self.endpoint(Role.HOLDER, name, identity=identity)
        with self._session(ours, self._party(Role.HOLDER)) as session:
            yield session

    def collect(self, session: Session) -> None:
        verified = self.consortium.verified()
        key, _ = collect_release(
            session, verified, "ada-train", clock=time.monotonic, run=RUN
        )
        key.wipe()

    @contextmanager
    def _session(self, ours: Endpoint, policy: PeerPolicy) -> Iterator[Session]:
        here, there = memory_pair()
        theirs = self.endpoint(
            Role.BROKER, "ada", identity=self.consortium.identities["ada"]
        )

        def serve() -> None:
            began_s = time.monotonic()
            with (
                suppress(SealiftError),
                accept(there, theirs, policy) as session,
            ):
                self.broker.serve(session, 10.0, accepted_at_s=began_s)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with connect(here, ours, self._party(Role.BROKER)) as session:
                yield session
        finally:
            thread.join(300)

    def _party(self, role: Role) -> PeerPolicy:
        keys = {each.name: each.sign for each in self.consortium.agreement.parties}
        return PeerPolicy(
            roles=frozenset({role}), identities=keys, require_identity=True
        )


@pytest.fixture
def line(consortium: Consortium, box: BrokerBox) -> Line:
    return Line(consortium, box.broker)


@pytest.fixture
def host(consortium: Consortium) -> Host:
    return Host(consortium)


def revocations(folder: Path) -> list[tuple[str, int]]:
    entries = read_entries(folder / "ada.log")
    return [(e.rule, e.epoch) for e in entries if e.kind == "revocation"]  # type: ignore[union-attr]


def ask(line: Line, instance: PublicKey, wait_s: float) -> tuple[bool, str]:
    with line.holder() as session:
        found = ask_lease(session, instance, wait_s=wait_s)
    return found.good, found.rule


def test_who_keeps_proving_itself_goes_on(
    line: Line, host: Host, tmp_path: Path
) -> None:
    ours = line.endpoint(Role.ACCELERATOR, "accelerator-0", attester=host)
    with line.accelerator(host, ours) as session:
        line.collect(session)
        for _ in range(6):
            time.sleep(BEAT_S / 3)
            assert prove_lease(session).good
        assert ask(line, ours.instance.public_key, 0) == (True, "")
        give_back_lease(session)
    time.sleep(BEAT_S + GRACE_S)
    assert ask(line, ours.instance.public_key, 0) == (True, "")
    assert revocations(tmp_path) == []


def test_bad_evidence_revokes_at_once(line: Line, host: Host, tmp_path: Path) -> None:
    ours = line.endpoint(Role.ACCELERATOR, "accelerator-0", attester=host)
    with line.accelerator(host, ours) as session:
        line.collect(session)
        host.spoil()
        with pytest.raises(SealiftError):
            prove_lease(session)
    rule = "code-bundle-differs"
    assert ask(line, ours.instance.public_key, 5.0) == (False, rule)
    assert revocations(tmp_path) == [(rule, 1)]


def test_silence_revokes_and_the_holder_hears_of_it(
    line: Line, host: Host, tmp_path: Path
) -> None:
    ours = line.endpoint(Role.ACCELERATOR, "accelerator-0", attester=host)
    with line.accelerator(host, ours) as session:
        line.collect(session)
        deadline = time.monotonic() + 300.0
        while not revocations(tmp_path) and time.monotonic() < deadline:
            who = ours.instance.public_key
            found = ask(line, who, 10.0)
            time.sleep(0.02)
        assert found == (False, "heartbeat-missing")
        with pytest.raises(PolicyError, match="heartbeat-missing"):
            prove_lease(session)
    assert revocations(tmp_path) == [("heartbeat-missing", 1)]


def test_silence_pauses_and_who_speaks_again_goes_on(
    line: Line, host: Host, tmp_path: Path
) -> None:
    ours = line.endpoint(Role.ACCELERATOR, "accelerator-0", attester=host)
    who = ours.instance.public_key
    with line.accelerator(host, ours) as session, line.holder() as asking:
        line.collect(session)
        assert ask_lease(asking, who, wait_s=10.0).ends_s > 0  # no good word, not over
        assert not prove_lease(session).good  # it counts from the answer before
        assert prove_lease(session).good
        assert ask_lease(asking, who).good
        give_back_lease(session)
    assert revocations(tmp_path) == []


def test_a_revoked_instance_gets_nothing_a_fresh_one_does(
    line: Line, host: Host
) -> None:
    ours = line.endpoint(Role.ACCELERATOR, "accelerator-0", attester=host)
    line.broker.leases.revoke(ours.instance.public_key, "ima-not-allowed")
    with (
        line.accelerator(host, ours) as session,
        pytest.raises(PolicyError, match="lease-revoked"),
    ):
        line.collect(session)
    with line.accelerator(host) as session:
        line.collect(session)


def test_a_lease_is_proven_by_renewal_only(line: Line, host: Host) -> None:
    """Control: asking alone, without fresh evidence, does not keep a lease."""
    from sealift.release.broker.messages import BrokerRequest, LeaseRequest
    from sealift.release.client import ask_broker

    with line.accelerator(host) as session:
        line.collect(session)
        with pytest.raises(PolicyError, match="not-renewed"):
            ask_broker(session, BrokerRequest(lease=LeaseRequest(action="prove")), 5.0)


def test_a_session_that_was_kept_open_gets_no_key(line: Line, host: Host) -> None:
    """Its evidence is of a heartbeat ago: the host may have turned bad since."""
    with line.accelerator(host) as session:
        time.sleep(BEAT_S + GRACE_S)
        with pytest.raises(PolicyError, match="evidence-old"):
            line.collect(session)
        session.rekey()
        request_head(session)  # an answer from which on the next renewal counts
        session.rekey()
        line.collect(session)  # control: after a renewal it does


def test_who_gave_its_lease_back_is_given_no_rows(line: Line, host: Host) -> None:
    """A host that turned bad ends the demand for evidence, and goes on with the key."""
    ours = line.endpoint(Role.ACCELERATOR, "accelerator-0", attester=host)
    who = ours.instance.public_key
    stopped = threading.Event()
    with line.accelerator(host, ours) as session, line.holder() as asking:
        line.collect(session)
        watch = LeaseWatch(
            lambda wait_s: ask_lease(asking, who, wait_s=wait_s),
            TERMS,
            time.monotonic,
        )
        watch.start()
        with watch.visit(stopped.set):
            give_back_lease(session)
            assert stopped.wait(LASTS_S + 5)
            with pytest.raises(StaleError, match="no lease"):
                watch.require_good()


def test_a_broker_started_again_asks_for_evidence_as_before(
    line: Line, host: Host, box: BrokerBox, consortium: Consortium
) -> None:
    ours = line.endpoint(Role.ACCELERATOR, "accelerator-0", attester=host)
    who = ours.instance.public_key
    with line.accelerator(host, ours) as session:
        line.collect(session)
        give_back_lease(session)  # so that the old broker, which runs on, misses nobody
    line.broker = start_broker(consortium, "ada", box.vault, box.log)
    assert line.broker.open_leases() == 0
    with line.accelerator(host, ours) as session, line.holder() as asking:
        assert not ask_lease(asking, who).due_s
        prove_lease(session)
        assert ask_lease(asking, who).due_s
        time.sleep(BEAT_S + GRACE_S)
        assert ask_lease(asking, who).rule == "heartbeat-missing"


def test_only_the_owners_holder_may_ask(line: Line, host: Host) -> None:
    ours = line.endpoint(Role.ACCELERATOR, "accelerator-0", attester=host)
    for other in ("bern", "cleo"):
        with (
            line.holder(other) as session,
            pytest.raises(PolicyError, match="not-the-owner"),
        ):
            ask_lease(session, ours.instance.public_key)


def test_uses_are_debited_before_the_key_leaves(
    line: Line, host: Host, tmp_path: Path
) -> None:
    for _ in range(3):
        with line.accelerator(host) as session:
            line.collect(session)
            give_back_lease(session)
    with (
        line.accelerator(host) as session,
        pytest.raises(PolicyError, match="uses-exhausted"),
    ):
        line.collect(session)
    uses = [e.use for e in read_entries(tmp_path / "ada.log") if e.kind == "release"]  # type: ignore[union-attr]
    assert uses == [1, 2, 3]


def test_a_clean_host_cannot_stand_in_for_one_that_turned_bad(
    line: Line, host: Host, tmp_path: Path
) -> None:
    """Both are agreed on, and whoever took the instance key over has both at hand."""
    ours = line.endpoint(Role.ACCELERATOR, "accelerator-0", attester=host)
    with line.accelerator(host, ours) as session:
        line.collect(session)
        host.borrow(CLEAN)
        with pytest.raises(PolicyError, match="attester-differs"):
            prove_lease(session)
    with (  # nor in a session of its own
        line.accelerator(host, ours) as session,
        pytest.raises(PolicyError, match="attester-differs"),
    ):
        prove_lease(session)
    time.sleep(LASTS_S + GRACE_S + 0.3)
    assert revocations(tmp_path) == [("heartbeat-missing", 1)]


def test_a_dead_session_is_silence(line: Line, host: Host, tmp_path: Path) -> None:
    with suppress(PeerError, RefusedError), line.accelerator(host) as session:
        line.collect(session)
    time.sleep(LASTS_S + GRACE_S + 0.3)
    assert revocations(tmp_path) == [("heartbeat-missing", 1)]
