"""The client of a served model: it appraises the server, then asks.

::

    import sealift

    with sealift.connect(
        "server:7420", agreement="agreement.json", owner="lab.card.json"
    ) as model:
        answer = model.predict({"pixels": pixels})  # numpy or torch, by name

What is trusted is the agreement alone, known by its owner's key or by its digest: the
server's evidence must satisfy it, its code bundle must be the agreed one, and the model
that it names must be the agreed one by its commitment. ``development`` protects nobody
and is refused unless it is asked for. No torch here.
Source: spec/serve.md section Client.

``AsyncClient`` judges, asks and raises as ``Client`` does, in threads, as many as the server
takes questions of one client, and blocks nobody's loop. Whatever is cancelled is withdrawn
at the server, too: the thread that waited for it ends with the server's next word.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, Self, TypeVar

from sealift.attest.policy import AttestationResult
from sealift.channel.transport.tcp import TcpTransport
from sealift.channel.transport.transport import Transport
from sealift.errors import (
    MalformedError,
    PeerError,
    UnavailableError,
    UsageError,
    require_kind,
    require_value,
)
from sealift.ids import Role
from sealift.serve.clientpolicy import (
    ClientPolicy,
    ServerFacts,
    load_policy,
    require_code,
    require_model,
    what_was_seen,
)
from sealift.serve.pending import (
    Arrays,
    PackedQuestion,
    PendingRequests,
    Withdrawal,
    pack_question,
    unexpected,
    unpack_answer,
)
from sealift.serve.protocol import (
    VERSION,
    BusyError,
    InferenceAnswer,
    Refused,
    ServerWelcome,
    explain_refusal,
    receive_packet,
)
from sealift.session.endpoint import Endpoint
from sealift.session.session import Session
from sealift.session.session import connect as open_session
from sealift.train.job.settings import parse_address
from sealift.train.output.modelform import Fields, ModelForm, form_of
from sealift.travel.peers import accelerator_names, expect_accelerator

CONNECT_S: Final = 10.0
ANSWER_S: Final = 60.0
COME_AGAIN_S: Final = 1.0
# Refusals before a session that pass by themselves. Nobody signs them: whoever is on the
# way can send one, and could as well cut the connection.
_PASSING: Final = {
    "too-many-clients": "it takes no more clients now, in all or from this address",
    "server-loading": "it has no model yet",
}


class Client:
    """One session with a serving accelerator; safe to use from several threads.

    Made by ``connect``.

    Attributes:
        seen: What the server proved.
        form: What the model is asked and what it answers.
        max_waiting: Questions that the server takes of one client at a time.
    """

    def __init__(
        self, session: Session, policy: ClientPolicy, welcome: ServerWelcome
    ) -> None:
        self._session = session
        self._policy = policy
        result = _appraised(session, policy)
        self.form = form_of(policy.resource)
        self.max_waiting = welcome.max_waiting
        self._pending = PendingRequests(session, self.form, welcome.max_request_bytes)
        self.seen = what_was_seen(result, policy, welcome)

    def predict(
        self,
        rows: Arrays,
        *,
        timeout_s: float = ANSWER_S,
        patience_s: float = 0.0,
        pad: bool = False,
        withdrawal: Withdrawal | None = None,
    ) -> dict[str, Any]:
        """The model's answer to some rows.

        Args:
            rows: An array of shape (rows, ...) by name, numpy or torch; of a model with
                one input the array alone. More rows than the model takes at once go in
                parts.
            timeout_s: How long each part may take.
            patience_s: How long to come again while the server is busy.
            pad: Hide lengths but for their power of two.
            withdrawal: What another thread can end it with.

        Returns:
            Arrays by name; tensors, if a tensor was given.

        Raises:
            MalformedError: the rows do not fit the model's form.
            PeerError: ``busy``, no answer in time, or the server is gone.
            JobError: the model failed.
        """
        outputs = _offered(self.form.outputs, "predict")
        question = pack_question(rows, self.form)
        found, way_out = bytearray(), withdrawal or Withdrawal()
        for start in range(0, question.rows, self.form.max_rows):
            part = question.part(start, self.form.max_rows)
            found += self._insist(part, timeout_s, patience_s, way_out, pad=pad)
        return unpack_answer(found, outputs.schema, as_tensors=question.of_tensors)

    def generate(
        self,
        rows: Arrays,
        *,
        steps: int = 0,
        timeout_s: float = ANSWER_S,
        pad: bool = False,
        withdrawal: Withdrawal | None = None,
    ) -> Generator[dict[str, Any], None, None]:
        """The model's tokens, step by step, as they are made.

        Args:
            rows: As ``predict``; no more than the model takes at once.
            steps: Most steps; 0 for the model's own most.
            timeout_s: How long each step may take.
            pad: Hide lengths but for their power of two.
            withdrawal: What another thread can end it with, while this one waits.

        Whoever stops iterating (``close`` of the iterator) ends it at the server, too.
        Raises like ``predict``.
        """
        tokens = _offered(self.form.tokens, "generate")
        question = pack_question(rows, self.form)
        if question.rows > self.form.max_rows or steps < 0:
            raise MalformedError(
                f"the request has {question.rows} rows and {steps} steps",
                why=(
                    f"the model answers at most {self.form.max_rows} rows, and steps "
                    "cannot be negative"
                ),
                code="bad-request",
            )
        way_out = withdrawal or Withdrawal()
        return self._stream(question, tokens, steps, timeout_s, way_out, pad=pad)

    def renew(self) -> None:
        """Demand fresh evidence, and replace all keys (a whole new handshake).

        Raises:
            RefusedError: the server does not prove itself again; the session is over.
        """
        try:
            self._pending.renew()
            _appraised(self._session, self._policy)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the session."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _insist(
        self,
        part: PackedQuestion,
        timeout_s: float,
        patience_s: float,
        withdrawal: Withdrawal,
        *,
        pad: bool,
    ) -> bytes:
        until = time.monotonic() + patience_s
        while True:
            withdrawal.demand_wanted()
            id_ = self._pending.ask("predict", part, pad=pad)
            withdrawal.asked(self._pending, id_)
            try:
                return bytes(self._pending.await_answer(id_, timeout_s).payload)
            except PeerError as error:
                if error.code == "peer-timeout":
                    self._pending.cancel(id_)
                pause_s = getattr(error, "retry_s", 0.0)
                late = time.monotonic() + pause_s > until
                if error.code != "busy" or late or withdrawal.pause(pause_s):
                    raise
            finally:
                self._pending.forget(id_)

    def _stream(
        self,
        question: PackedQuestion,
        tokens: Fields,
        steps: int,
        timeout_s: float,
        withdrawal: Withdrawal,
        *,
        pad: bool,
    ) -> Generator[dict[str, Any], None, None]:
        withdrawal.demand_wanted()
        id_ = self._pending.ask("generate", question, steps, pad=pad)
        withdrawal.asked(self._pending, id_)
        number, final = 0, False
        try:
            while not final:
                packet = self._pending.await_answer(id_, timeout_s)
                header = require_kind(packet.header, InferenceAnswer)
                if header.number != number:
                    raise unexpected("tokens are missing")
                number, final = number + 1, header.final
                if header.rows:
                    yield unpack_answer(
                        packet.payload,
                        tokens.schema,
                        as_tensors=question.of_tensors,
                    )
        finally:
            self._pending.forget(id_)
            if not final:
                self._pending.cancel(id_)


def connect(
    address: str | tuple[str, int],
    policy: ClientPolicy | None = None,
    *,
    timeout_s: float = CONNECT_S,
    patience_s: float = 0.0,
    **terms: Any,
) -> Client:
    """Meet a server, appraise it, and be ready to ask.

    Args:
        address: ``host:port``.
        policy: What it must prove; or the arguments of ``load_policy``.
        timeout_s: For the connection, the handshake and the greeting, each.
        patience_s: How long to come again while the server takes no more clients, or
            loads its model.
        terms: See ``load_policy``.

    Raises:
        RefusedError: the server is not what the policy demands.
        PeerError: nobody answers there, or it refused us: ``too-many-clients`` and
            ``server-loading`` say in ``retry_s`` when to come again.
        UnavailableError: ``serve-version``: it speaks another version.
    """
    if policy is not None and terms:
        raise UsageError(
            "a policy and separate terms were given together",
            why=f"{', '.join(terms)} would be ignored",
            fix="Give either policy= or the separate arguments",
        )
    policy = policy or load_policy(**terms)
    policy.require_possible()  # before anything is dialled
    host, port = parse_address(address) if isinstance(address, str) else address
    until = time.monotonic() + patience_s
    while True:
        transport = TcpTransport.dial(host, port, timeout_s=timeout_s)
        try:
            return meet(transport, policy, timeout_s=timeout_s)
        except PeerError as error:
            if error.code != "peer-refused" or error.why not in _PASSING:
                raise
            if time.monotonic() + COME_AGAIN_S > until:
                why = _PASSING[error.why]
                raise BusyError(why, COME_AGAIN_S, code=error.why) from None
        time.sleep(COME_AGAIN_S)


def meet(
    transport: Transport, policy: ClientPolicy, *, timeout_s: float = CONNECT_S
) -> Client:
    """``connect`` over a connection that is there already."""
    identity = policy.identity
    endpoint = Endpoint(
        role=Role.CLIENT,
        name=identity.name if identity else "client",
        agreement=policy.agreement.digest,
        identity=identity,
    )
    session = open_session(
        transport,
        endpoint,
        expect_accelerator(policy.agreement, accelerator_names()[0]),
        timeout_s,
    )
    try:
        _appraised(session, policy)
        welcome = _greeting(session, timeout_s)
        require_model(welcome, policy)
        return Client(session, policy, welcome)
    except BaseException:
        session.close()
        raise


def _appraised(session: Session, policy: ClientPolicy) -> AttestationResult:
    """What its evidence proved, if that will do for this client (also once renewed)."""
    result = require_value(session.peer.result)
    policy.require_level(result.level)
    require_code(result, policy)
    return result


def _greeting(session: Session, timeout_s: float) -> ServerWelcome:
    header = receive_packet(session, timeout_s, max_payload=lambda _: 0).header
    if isinstance(header, Refused):
        raise explain_refusal(header)
    if not isinstance(header, ServerWelcome):
        raise unexpected("the server sent no greeting")
    if header.version != VERSION:
        raise UnavailableError(
            "the server has another version of the serving protocol",
            why=f"it has version {header.version}; this client has version {VERSION}",
            code="serve-version",
        )
    return header


def _offered(fields: Fields | None, work: str) -> Fields:
    if fields is None:
        raise MalformedError(f"this model does not support {work}", code="bad-request")
    return fields


MAX_THREADS: Final = 64
T = TypeVar("T")


class AsyncClient:
    """One session with a serving accelerator; a context, for tasks of one loop.

    Args:
        address: ``host:port``.
        policy: What the server must prove; or the arguments of ``load_policy``.
        terms: See ``connect``.
    """

    def __init__(
        self,
        address: str | tuple[str, int],
        policy: ClientPolicy | None = None,
        **terms: Any,
    ) -> None:
        self._dial = lambda: connect(address, policy, **terms)
        self._found: Client | None = None
        self._threads = ThreadPoolExecutor(1, "sealift-client")
        # Withdrawals do not queue behind what they withdraw.
        self._side = ThreadPoolExecutor(1, "sealift-withdrawal")

    @property
    def seen(self) -> ServerFacts:
        """What the server proved."""
        return self._client.seen

    @property
    def form(self) -> ModelForm:
        """What the model is asked and what it answers."""
        return self._client.form

    async def predict(self, rows: Arrays, **terms: Any) -> dict[str, Any]:
        """The model's answer to some rows; see ``Client.predict``."""
        client, withdrawal = self._client, Withdrawal()
        return await self._run(
            lambda: client.predict(rows, withdrawal=withdrawal, **terms),
            lambda _: self._aside(withdrawal.withdraw),
        )

    async def generate(
        self, rows: Arrays, **terms: Any
    ) -> AsyncGenerator[dict[str, Any]]:
        """The model's tokens, step by step; see ``Client.generate``.

        Closing the iterator (``contextlib.aclosing``) ends it at the server.
        """
        withdrawal = Withdrawal()
        stream = self._client.generate(rows, withdrawal=withdrawal, **terms)

        def abandon(step: Future[Any]) -> None:
            self._aside(withdrawal.withdraw)
            # While it is in its thread it cannot be closed.
            step.add_done_callback(lambda _: self._aside(stream.close))

        try:
            while step := await self._run(lambda: next(stream, None), abandon):
                yield step
        finally:
            self._aside(stream.close)  # unless it is in its thread: see above

    async def renew(self) -> None:
        """Demand fresh evidence; nobody may be waiting. See ``Client.renew``."""
        await self._run(self._client.renew, lambda _: None)

    async def aclose(self) -> None:
        """End the session; who still waits is told so."""
        found, self._found = self._found, None
        closer = ThreadPoolExecutor(1, "sealift-closing")  # behind no withdrawal
        try:
            if found is not None:
                closing = closer.submit(found.close)
                # Cancelled, only the wait is: the session ends all the same.
                await asyncio.wrap_future(closer.submit(closing.result))
        finally:
            for each in (closer, self._threads, self._side):
                each.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        try:
            self._found = await self._run(self._dial, _close_when_there)
        finally:
            self._threads.shutdown(wait=False)
        threads = min(self._found.max_waiting, MAX_THREADS)
        self._threads = ThreadPoolExecutor(threads, "sealift-client")
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    @property
    def _client(self) -> Client:
        if self._found is None:
            raise UsageError(
                "the client is not connected",
                fix="Use the client in an `async with` block",
            )
        return self._found

    async def _run(
        self, work: Callable[[], T], abandon: Callable[[Future[T]], object]
    ) -> T:
        """Its result, from a thread; ``abandon`` if nobody waits for it any more."""
        try:
            future = self._threads.submit(work)
        except RuntimeError:  # closed between two steps
            raise PeerError("the session is closed", code="session-closed") from None
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            abandon(future)
            raise

    def _aside(self, work: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # all is closed already
            self._side.submit(work)


def _close_when_there(dialled: Future[Client]) -> None:
    """Nobody waits for the session: end it as soon as it stands."""

    def close(done: Future[Client]) -> None:
        if not done.cancelled() and done.exception() is None:
            done.result().close()

    dialled.add_done_callback(close)
