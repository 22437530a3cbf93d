"""A client of a served model against servers, relays and other clients that lie.

Each refusal stands beside its control, or beside a mutant of ours that lets it through.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sealift.attest.development import DevelopmentAttester
from sealift.attest.evidence import Evidence
from sealift.attest.level import Level
from sealift.channel.transport.transport import Transport
from sealift.crypto.sign import SigningKey
from sealift.errors import (
    AuthenticationError,
    EvidenceError,
    MalformedError,
    PeerError,
    PolicyError,
    RefusedError,
    SealiftError,
)
from sealift.ids import Buffer, Digest, Role
from sealift.release.agreement.signed import SignedAgreement, add_signature, save_signed
from sealift.serve import client as client_module
from sealift.serve.client import connect as connect_client
from sealift.serve.client import meet
from sealift.serve.clientpolicy import load_policy, require_known
from sealift.serve.protocol import InferenceAnswer, InferenceRequest, send_packet
from sealift.serve.scheduler import Scheduler
from sealift.session.endpoint import Endpoint, PeerPolicy
from sealift.session.session import accept, connect
from tests.sim.served import Served, greeting, rows
from tests.worlds.memorytransport import memory_pair


def test_another_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(welcome: client_module.ServerWelcome) -> client_module.ServerWelcome:
        return replace(welcome, content=Digest.of(b"another"))

    served = Served(welcome=other)
    with pytest.raises(PolicyError) as caught:
        served.connect()
    assert caught.value.code == "other-model"
    monkeypatch.setattr(client_module, "require_model", lambda *_: None)  # the mutant
    served.connect().close()


def test_evidence_of_a_host_that_nobody_named() -> None:
    served = Served()
    stranger = DevelopmentAttester(
        SigningKey.generate(),
        role=Role.ACCELERATOR,
        code_bundle=served.verified.agreement.code.digest,
    )
    with pytest.raises(RefusedError):
        meet(served.dial(attester=stranger), served.policy())
    meet(served.dial(), served.policy()).close()


def test_other_code() -> None:
    served = Served()
    other = DevelopmentAttester(
        served.attester, role=Role.ACCELERATOR, code_bundle=Digest.of(b"other code")
    )
    with pytest.raises(RefusedError):
        meet(served.dial(attester=other), served.policy())


def test_development_is_refused_unless_asked_for() -> None:
    served = Served()
    with pytest.raises(PolicyError) as caught:
        connect_client(("127.0.0.1", 1), served.policy(development=False))
    assert caught.value.code == "development-refused"  # nothing was dialled
    with pytest.raises(PolicyError) as caught:
        meet(served.dial(), served.policy(development=False))
    assert caught.value.code == "development-refused"


def test_a_lower_level_than_agreed() -> None:
    """The agreement asks for a TEE, the server shows a software key."""
    served = Served(accept=(Level.TEE,))
    with pytest.raises(PolicyError) as caught:
        meet(served.dial(), served.policy())
    assert caught.value.code == "development-refused"


def test_a_level_that_this_client_does_not_take() -> None:
    with pytest.raises(PolicyError) as caught:
        Served().connect(levels=(Level.TEE,))
    assert caught.value.code == "level-refused"


def test_an_agreement_that_nothing_vouches_for() -> None:
    served = Served()
    resource = served.verified.agreement.resources[0]
    with pytest.raises(PolicyError) as caught:
        require_known(served.verified, resource, None, "")
    assert caught.value.code == "agreement-unknown"
    stranger = SigningKey.generate().public_key
    with pytest.raises(PolicyError) as caught:
        require_known(served.verified, resource, stranger, "")
    assert caught.value.code == "other-key"
    with pytest.raises(PolicyError) as caught:
        require_known(served.verified, resource, None, Digest.of(b"x").to_text())
    assert caught.value.code == "other-agreement"
    require_known(served.verified, resource, served.lab.public_key, "")


def test_python_clients_judge_hardware_as_the_command_does(tmp_path: Path) -> None:
    """What vendors and signers say is read, and refused where it is not theirs."""
    served, agreement = Served(), tmp_path / "agreement.json"
    signed = SignedAgreement(served.verified.agreement)
    save_signed(add_signature(signed, served.lab), agreement)
    known = {"agreement": agreement, "digest": served.verified.digest.to_text()}
    load_policy(**known)  # type: ignore[arg-type]
    bundle = tmp_path / "bundle.json"
    bundle.write_bytes(b"{}")
    for given in ({"collateral": bundle}, {"references": [bundle]}):
        with pytest.raises(MalformedError):
            load_policy(**known, **given)  # type: ignore[arg-type]


class Relayed:
    """An attester that shows what the genuine server said to somebody else."""

    def __init__(self, served: Served) -> None:
        self._served = served

    def collect(self, bound: bytes) -> Evidence:
        """Evidence from a session of our own with the genuine server."""
        policy = PeerPolicy(
            roles=frozenset({Role.ACCELERATOR}),
            require_evidence=True,
            appraiser=self._served.verified.appraiser(),
        )
        endpoint = Endpoint(
            role=Role.CLIENT, name="client", agreement=self._served.verified.digest
        )
        kept: list[Evidence] = []
        appraise = policy.appraiser.appraise  # type: ignore[union-attr]

        def keep(evidence: Evidence, *more: object) -> object:
            kept.append(evidence)
            return appraise(evidence, *more)  # type: ignore[arg-type]

        object.__setattr__(policy, "appraiser", _Keeping(policy.appraiser, keep))
        connect(self._served.dial(), endpoint, policy).close()
        return kept[0]


class _Keeping:
    def __init__(self, appraiser: object, appraise: object) -> None:
        self.accept = appraiser.accept  # type: ignore[attr-defined]
        self.appraise = appraise


def test_a_relay_in_the_middle() -> None:
    """Genuine evidence, of the genuine server, in the attacker's session."""
    served = Served()
    with pytest.raises(EvidenceError):
        meet(served.dial(attester=Relayed(served)), served.policy())


class Meddling:
    """A connection on which ``change`` is done to frames after the handshake."""

    def __init__(self, transport: Transport) -> None:
        self.max_frame_bytes = transport.max_frame_bytes
        self.there = transport
        self.sent: list[bytes] = []
        self.came: list[bytes] = []
        self.replay = False
        self.instead: bytes | None = None

    def send(self, frame: Buffer) -> None:
        self.sent.append(bytes(frame))
        self.there.send(frame)
        if self.replay:
            self.there.send(frame)

    def receive(self, timeout_s: float | None = None) -> bytes:
        frame = self.there.receive(timeout_s)
        self.came.append(frame)
        frame, self.instead = self.instead or frame, None
        return frame

    def close(self) -> None:
        self.there.close()


def test_a_replayed_question() -> None:
    with (served := Served()).running():
        between: list[Meddling] = []

        def meddle(transport: Transport) -> Transport:
            between.append(Meddling(transport))
            return between[0]

        with meet(served.dial(meddle), served.policy()) as client:
            client.predict(rows(1.0))
            asked = len(served.model.batches)
            between[0].replay = True
            with pytest.raises((PeerError, RefusedError)):
                ask_twice(client)
        assert len(served.model.batches) <= asked + 1  # never answered twice


def ask_twice(client: client_module.Client) -> None:
    """The first may be answered before the copy of its record ends the session."""
    client.predict(rows(2.0))
    client.predict(rows(3.0))


def test_a_question_number_is_used_once() -> None:
    """A client that repeats itself inside its own session."""
    with (served := Served()).running(), served.connect() as client:
        client.predict(rows(1.0))
        send_packet(
            client._session, InferenceRequest(id=1, work="predict", rows=1), bytes(8)
        )
        with pytest.raises(SealiftError) as caught:
            client.predict(rows(1.0))
        assert caught.value.code in ("bad-packet", "session-closed", "server-gone")
        assert served.model.batches == [[1]]


def test_an_answer_of_another_client() -> None:
    with (served := Served()).running():
        between: list[Meddling] = []

        def meddle(transport: Transport) -> Transport:
            between.append(Meddling(transport))
            return between[-1]

        first = meet(served.dial(meddle), served.policy())
        second = meet(served.dial(meddle), served.policy())
        first.predict(rows(1.0))
        between[1].instead = between[0].came[-1]
        with pytest.raises(AuthenticationError):
            second.predict(rows(2.0))
        first.close()


@pytest.mark.parametrize(
    ("answer", "payload"),
    [
        (InferenceAnswer(id=7, number=0, rows=1, final=True), bytes(8)),
        (InferenceAnswer(id=1, number=0, rows=1, final=True), bytes(4 * 3)),
        (InferenceRequest(id=1, work="predict", rows=1), bytes(8)),
    ],
)
def test_a_server_that_answers_something_else(
    answer: InferenceAnswer, payload: bytes
) -> None:
    served = Served()
    here, there = memory_pair()

    def lie() -> None:
        endpoint = Endpoint(
            role=Role.ACCELERATOR,
            name="accelerator-0",
            agreement=served.verified.digest,
            attester=served.genuine_attester(),
        )
        policy = PeerPolicy(roles=frozenset({Role.CLIENT}), anonymous=True)
        session = accept(there, endpoint, policy)
        send_packet(session, greeting(served.verified))
        session.receive(10)
        send_packet(session, answer, payload)

    threading.Thread(target=lie, daemon=True).start()
    with meet(here, served.policy()) as client, pytest.raises(MalformedError):
        client.predict(rows(1.0), timeout_s=300)


def test_each_client_gets_its_own_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not _mixed_up()
    route = Scheduler._route

    def shifted(
        self: Scheduler, batch: list, found: memoryview, row_bytes: int
    ) -> None:
        route(self, batch[::-1], found, row_bytes)  # the mutant

    monkeypatch.setattr(Scheduler, "_route", shifted)
    assert _mixed_up()


def _mixed_up() -> bool:
    """Whether any of several clients in one batch got another one's answer."""
    served = Served()
    wrong: list[int] = []
    with served.running():
        clients = [served.connect() for _ in range(5)]
        served.model.gate.clear()
        threads = [
            threading.Thread(target=_ask, args=(each, float(number), wrong))
            for number, each in enumerate(clients)
        ]
        threads[0].start()
        assert served.model.entered.wait(300)
        for thread in threads[1:]:
            thread.start()
        while served.scheduler.waiting()[0] < 4:
            time.sleep(0.001)
        served.model.gate.set()
        for thread in threads:
            thread.join(300)
        assert served.model.batches == [[1], [1, 1, 1, 1]]
        for each in clients:
            each.close()
    return bool(wrong)


def _ask(client: client_module.Client, value: float, wrong: list[int]) -> None:
    answer = client.predict(rows(value))["y"]
    if not np.array_equal(answer, 2 * rows(value)):
        wrong.append(int(value))
