"""A served model over real sessions: streams, failures, limits, leaving."""

from __future__ import annotations

import struct
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from sealift.attest.level import Level
from sealift.crypto.sign import SigningKey
from sealift.data.schema.schema import Field, Schema
from sealift.errors import (
    JobError,
    MalformedError,
    PeerError,
    PolicyError,
    UnavailableError,
    UsageError,
)
from sealift.serve import clientsession
from sealift.serve.client import connect, meet
from sealift.serve.clientsession import UNTAKEN, ClientSession
from sealift.serve.pending import pack_question
from sealift.serve.protocol import InferenceRequest, send_packet, send_packet_now
from sealift.session.frames import MessageType
from sealift.session.handshake import Initiator
from sealift.train.job.settings import ServingTable
from sealift.train.output.modelform import Fields
from tests.sim.served import FORM, POISON, Doubler, Served, greeting, rows


def wait_until(met: object) -> None:
    until = time.monotonic() + 300
    while not met() and time.monotonic() < until:  # type: ignore[operator]
        time.sleep(0.002)
    assert met()  # type: ignore[operator]


def test_streams_and_answers_take_turns() -> None:
    with (served := Served()).running(), served.connect() as client:
        stream = client.generate(rows(1.0, 2.0), steps=5)
        assert next(stream)["t"].tolist() == [[1.0, 1.0], [1.0, 1.0]]
        assert client.predict(rows(3.0))["y"].tolist() == [[6.0, 7.0]]
        assert [each["t"][0, 0] for each in stream] == [2.0, 3.0, 4.0, 5.0]
        assert len(list(client.generate(rows(1.0)))) == 20  # the form's own most


def test_who_stops_listening_ends_the_generation() -> None:
    with (served := Served()).running(), served.connect() as client:
        stream = client.generate(rows(1.0))
        next(stream)
        stream.close()
        wait_until(
            lambda: (
                served.scheduler.waiting() == (0, 0) and not served.scheduler._streams
            )
        )
        assert client.predict(rows(1.0))["y"].tolist() == [[2.0, 3.0]]


def test_a_client_that_leaves_frees_what_it_held() -> None:
    with (served := Served()).running():
        client = served.connect()
        next(client.generate(rows(1.0)))
        client.close()
        wait_until(lambda: not served.scheduler._streams)


def test_poison_fails_alone() -> None:
    """Of several clients in one batch, the one whose rows the model fails on."""
    with (served := Served()).running():
        clients = [served.connect() for _ in range(3)]
        served.model.gate.clear()
        found: dict[int, object] = {}

        def ask(number: int, value: float) -> None:
            try:
                found[number] = clients[number].predict(rows(value))["y"]
            except JobError as error:
                found[number] = error

        threads = [
            threading.Thread(target=ask, args=words)
            for words in ((0, 1.0), (1, POISON), (2, 3.0))
        ]
        threads[0].start()
        assert served.model.entered.wait(300)
        for thread in threads[1:]:
            thread.start()
        wait_until(lambda: served.scheduler.waiting()[0] == 2)
        served.model.gate.set()
        for thread in threads:
            thread.join(300)
        assert isinstance(found[1], JobError)
        assert found[1].code == "model-failed"
        assert "recipe" not in str(found[1])
        assert np.array_equal(found[2], 2 * rows(3.0))
        for each in clients:
            each.close()


def test_busy_says_when_and_patience_comes_again() -> None:
    settings = ServingTable(max_waiting=1, max_delay_ms=0.0)
    with (served := Served(settings=settings)).running(), served.connect() as client:
        served.model.gate.clear()
        waiting = threading.Thread(target=client.predict, args=(rows(1.0),))
        waiting.start()
        assert served.model.entered.wait(300)
        with pytest.raises(PeerError) as caught:
            client.predict(rows(2.0))
        assert caught.value.code == "busy"
        assert caught.value.retry_s > 0  # type: ignore[attr-defined]
        threading.Timer(0.1, served.model.gate.set).start()
        assert client.predict(rows(2.0), patience_s=10)["y"].tolist() == [[4.0, 5.0]]
        waiting.join(300)


def test_a_server_that_is_stopped_says_so() -> None:
    served = Served()
    with served.running():
        client = served.connect()
        client.predict(rows(1.0))
    with pytest.raises(JobError):  # as the scheduler of this test was told
        client.predict(rows(1.0))
    client.close()


def test_a_server_that_is_gone_in_the_midst() -> None:
    with (served := wide_tokens()).running():  # more than the system has taken
        there: list = []

        def keep(transport: object) -> object:
            there.append(transport)
            return transport

        client = meet(served.dial(keep), served.policy())  # type: ignore[arg-type]
        stream = client.generate(rows(1.0))
        next(stream)
        there[0].close()
        with pytest.raises(PeerError) as caught:
            list(stream)
        assert caught.value.code in ("server-gone", "session-truncated")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"z": rows(1.0)}, "the arrays x; "),
        (rows(1.0).astype(int), "must be float32"),
        (rows(1.0)[:, :1], "has shape"),
        (np.zeros((0, 2), np.float32), "at least one"),
    ],
)
def test_rows_that_do_not_fit(given: object, why: str) -> None:
    with (
        Served().connect() as client,
        pytest.raises(MalformedError, match=why) as caught,
    ):
        client.predict(given)
    assert caught.value.code == "bad-request"


def test_what_the_server_checks_itself() -> None:
    """A client that sends what ours would not."""
    with (served := Served()).running(), served.connect() as client:
        for rows_, payload in ((2, bytes(8)), (17, bytes(17 * 8)), (0, b"")):
            mail = client._pending
            mail._last_id += 1
            mail._inbox[mail._last_id] = deque()
            header = InferenceRequest(id=mail._last_id, work="predict", rows=rows_)
            send_packet(client._session, header, payload)
            with pytest.raises(MalformedError) as caught:
                mail.await_answer(mail._last_id, 10)
            assert caught.value.code == "bad-request"
        big = InferenceRequest(id=mail._last_id + 1, work="predict", rows=1)
        with suppress(PeerError):  # it hangs up before all of it has come
            send_packet(client._session, big, bytes(17 << 20))
        with pytest.raises((MalformedError, PeerError)) as refused:
            client.predict(rows(1.0))
        assert refused.value.code in ("request-too-large", "server-gone", "peer-closed")
    assert not served.model.batches


def test_another_version() -> None:
    served = Served(welcome=lambda welcome: replace(welcome, version=2))
    with pytest.raises(UnavailableError) as caught:
        served.connect()
    assert caught.value.code == "serve-version"


def test_fresh_evidence_on_demand() -> None:
    with (served := Served()).running(), served.connect() as client:
        client.predict(rows(1.0))
        client.renew()
        assert client.predict(rows(2.0))["y"].tolist() == [[4.0, 5.0]]
        served.attester = SigningKey.generate()


def test_what_went_wrong_at_the_server_stays_there() -> None:
    """Places, names of files and kinds of failures are nothing for a client."""
    with (served := Served()).running(), served.connect() as client:

        def fail(parts: object, rows: int) -> bytearray:
            raise UnavailableError(
                "cannot read it", why="/srv/models/secret.sealed", code="no-file"
            )

        served.model.predict = fail  # type: ignore[method-assign, assignment]
        with pytest.raises(JobError) as caught:
            client.predict(rows(1.0))
        assert caught.value.code == "model-failed"
        assert "srv" not in str(caught.value)


class Deaf:
    """A client that asks for ever and takes nothing."""

    def __init__(self) -> None:
        self.asked = 0
        self.over = threading.Event()
        self.line: deque[bytes] = deque()

    descriptor = None  # nobody says when something came

    def send_now(self, message: object) -> bool:
        return False

    def send(self, message: object) -> None:
        self.over.wait(300)
        raise PeerError("gone", code="peer-closed")

    def receive(self, timeout_s: float | None = None) -> bytes:
        if self.over.is_set():
            raise PeerError("gone", code="peer-closed")
        self.asked += 1
        kept: deque[bytes] = deque()
        ask = InferenceRequest(id=self.asked, work="predict", rows=0)
        send_packet(_Kept(kept), ask)
        return kept.popleft()

    def close(self) -> None:
        self.over.set()


class _Kept:
    def __init__(self, kept: deque[bytes]) -> None:
        self.kept = kept

    def send(self, message: object) -> None:
        self.kept.append(bytes(message))  # type: ignore[call-overload]

    def receive(self, timeout_s: float | None = None) -> bytes:
        raise NotImplementedError


def test_who_takes_nothing_is_not_read_for_ever() -> None:
    served, deaf = Served(), Deaf()
    client_session = ClientSession(
        deaf, deaf, served.scheduler, served.form,
        settings=ServingTable(), clock=time.monotonic, metrics=served.metrics,
        arrivals=served.arrivals,
    )  # fmt: skip
    thread = threading.Thread(
        target=client_session.serve, args=(greeting(served.verified),), daemon=True
    )
    thread.start()
    wait_until(lambda: deaf.asked >= UNTAKEN)
    time.sleep(0.05)
    assert deaf.asked <= UNTAKEN + 1
    deaf.close()
    thread.join(300)
    assert not thread.is_alive()


def wide_tokens() -> Served:
    """A model whose tokens are more than a socket takes, until somebody reads."""
    width = 20_000
    tokens = Fields(Schema((Field("t", "float32", (width,)),)), {"t": 3})
    return Served(form=replace(FORM, tokens=tokens), model=Doubler(width))


def test_answers_keep_their_order_whoever_sends_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The scheduler sends what the system takes at once, the session's writer the rest."""
    at_once: list[bool] = []

    def note(*words: object, **options: object) -> bool:
        at_once.append(send_packet_now(*words, **options))  # type: ignore[arg-type]
        return at_once[-1]

    monkeypatch.setattr(clientsession, "send_packet_now", note)
    with (served := wide_tokens()).running(), served.connect() as client:
        stream = client.generate(rows(1.0))
        first = next(stream)
        wait_until(lambda: False in at_once)  # nobody reads: there is no room any more
        found = [float(each["t"][0, 0]) for each in (first, *stream)]
        assert found == [float(number) for number in range(1, 21)]
        assert client.predict(rows(1.0))["y"].tolist() == [[2.0, 3.0]]
    assert True in at_once


def test_a_client_that_stops_in_the_middle_keeps_nobody_waiting() -> None:
    """Of a frame, of a packet of two messages, of a new handshake; each in its own way."""
    with (served := Served()).running(), served.connect() as other:
        assert other.predict(rows(1.0))["y"].tolist() == [[2.0, 3.0]]
        halves = [served.connect() for _ in range(3)]
        frame, packet, handshake = (each._session for each in halves)
        frame._transport._sock.send(b"\0\0\1\0half")
        packet.send(struct.pack(">IQQ", 2, 900_000, 0) + b"x" * 100)
        hello = Initiator(
            handshake._endpoint, handshake._policy, renews=handshake.established
        )
        handshake._sending.send(MessageType.REKEY_HELLO, hello.hello())
        for number in range(20):
            answer = other.predict(rows(float(number)))["y"]
            assert answer.tolist() == [[2.0 * number, 2.0 * number + 1.0]]
        for each in halves:
            each.close()


def test_a_client_that_says_nothing_for_too_long_is_let_go() -> None:
    served = Served(settings=ServingTable(max_delay_ms=0.0, idle_s=0.2))
    with served.running(), served.connect() as client:
        with pytest.raises(PeerError):
            client._session.receive(300)
        with pytest.raises(PeerError) as ended:
            client.predict(rows(1.0))
        assert ended.value.code in ("session-closed", "server-gone")


def test_what_does_not_parse_ends_one_session_and_is_counted() -> None:
    with (
        (served := Served()).running(),
        served.connect() as other,
        served.connect() as client,
    ):
        client._session.send(b"no packet")
        with pytest.raises(MalformedError) as refused:
            client.predict(rows(1.0))
        assert refused.value.code == "bad-packet"
        assert served.metrics.numbers()["refused_bad_packet"] == 1
        assert other.predict(rows(1.0))["y"].tolist() == [[2.0, 3.0]]


def test_questions_that_came_together_are_all_answered() -> None:
    """In one piece of the system's, behind which it tells of nothing more."""
    with (served := Served()).running(), served.connect() as client:
        question = pack_question(rows(1.0), served.form)
        sending, held = client._session._sending, bytearray()
        transport = sending._transport
        sending._transport = SimpleNamespace(
            send=lambda frame: held.extend(len(frame).to_bytes(4, "big") + frame)
        )
        asked = [client._pending.ask("predict", question, pad=False) for _ in range(6)]
        sending._transport = transport
        transport._sock.sendall(held)
        for each in asked:
            assert client._pending.await_answer(each, 300).header.final


def test_a_question_of_several_messages_is_answered() -> None:
    width = 400_000
    wide = Schema((Field("x", "float32", (width,)),))
    form = replace(
        FORM,
        inputs=wide,
        outputs=Fields(Schema((Field("y", "float32", (width,)),)), {"y": 3}),
    )
    settings = ServingTable(max_delay_ms=0.0)
    with (
        (served := Served(form=form, settings=settings)).running(),
        served.connect() as client,
    ):
        given = np.ones((1, width), np.float32)
        for _ in range(2):
            assert (client.predict(given)["y"] == 2.0).all()


def test_a_policy_and_terms_are_not_both_given() -> None:
    with pytest.raises(UsageError, match="development"):
        connect(("127.0.0.1", 1), Served().policy(), development=False)


def test_evidence_that_does_not_do_any_more_ends_the_session() -> None:
    with (served := Served()).running(), served.connect() as client:
        client._policy = served.policy(levels=(Level.TEE,))
        with pytest.raises(PolicyError) as caught:
            client.renew()
        assert caught.value.code == "level-refused"
        with pytest.raises(PeerError):
            client.predict(rows(1.0))


def test_a_client_may_want_the_second_of_several_levels() -> None:
    several = (Level.TEE, Level.ATTESTED_HOST)
    served = Served(accept=several)
    served.policy(levels=several[1:]).require_possible()
    served.policy().require_possible()
    with pytest.raises(PolicyError):
        served.policy(levels=(Level.GPU_TEE,)).require_possible()
