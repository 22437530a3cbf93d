"""One client at the server: reads its questions, writes its answers, in its own session.

Nothing is shared between clients but the scheduler; answers are queued for the session that
the question came in and for no other. Whoever floods, or sends what does not parse, is
told why and loses its session; a question that does not fit the form is refused alone.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from sealift.channel.transport.transport import peer_timeout
from sealift.data.schema.rows import demand_rows
from sealift.errors import (
    MalformedError,
    PeerError,
    SealiftError,
    require_kind,
    visible,
)
from sealift.ids import Buffer
from sealift.serve.admission import SocketWatcher
from sealift.serve.batching import PendingQuestion
from sealift.serve.protocol import (
    MAX_LINE_CHARACTERS,
    BusyError,
    Cancel,
    Header,
    InferenceAnswer,
    InferenceRequest,
    Packet,
    Refused,
    ServerWelcome,
    bad_request,
    is_whole,
    receive_packet,
    send_packet,
    send_packet_now,
    too_large,
)
from sealift.serve.scheduler import Scheduler, ServerMetrics
from sealift.session.session import Session
from sealift.train.job.settings import ServingTable
from sealift.train.output.modelform import ModelForm

OUTBOX: Final = 4  # answers that wait for a client before its generations pause
UNTAKEN: Final = 64  # and before nothing more is read of it
# What a client is told about. All else is the model's or the server's own: lines of such
# errors name files, places and kinds of failures.
_TOLD: Final = frozenset({
    "busy", "bad-request", "request-too-large", "bad-packet", "request-timeout",
    "server-stopping", "tokens-not-taken",
})  # fmt: skip


class ClientSession:
    """Serves one session until its client leaves or the server does.

    Args:
        session: Established.
        client: Whose it is, for limits and batches.
        identity: Whose it is, for a share of the places; the client if nothing else is.
        scheduler: Works the model.
        form: Of the model.
        settings: What it may do.
        clock: Monotonic seconds.
        metrics: Counts.
        arrivals: Reads what the client sends, where the system says when.
    """

    def __init__(
        self,
        session: Session,
        client: object,
        scheduler: Scheduler,
        form: ModelForm,
        *,
        settings: ServingTable,
        clock: Callable[[], float],
        metrics: ServerMetrics,
        arrivals: SocketWatcher,
        identity: object = None,
    ) -> None:
        self._session = session
        self._client = client
        self._identity = client if identity is None else identity
        self._scheduler = scheduler
        self._form = form
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._open: dict[int, PendingQuestion] = {}
        self._outbox: deque[tuple[Header, Buffer, bool]] = deque()
        self._full_s, self._full_since_s = 0.0, math.inf
        self._changed = threading.Condition()
        self._ending = False
        self._arrivals = arrivals
        self._reading = threading.Lock()
        self._attended = False  # whether ``SocketWatcher`` reads
        self._heard_s = 0.0
        self._begun: bytes | None = None
        self._failed: Exception | None = None
        self._writing = False  # whether the writer has taken something and sends it
        self._last_id = 0

    def serve(self, welcome: ServerWelcome) -> None:
        """Greet, then answer; returns when the session is over."""
        self._put(welcome)
        writer = threading.Thread(target=self._write, name="answers", daemon=True)
        writer.start()
        try:
            self._read()
        finally:
            self._abandon()
            self._end()
            writer.join()
            self._session.close()

    def dismiss(self, error: SealiftError) -> None:
        """The server goes away: say so, after the answers that are queued."""
        self._put(_refusal(0, error))
        self._end()

    def _read(self) -> None:
        try:
            while self._await_taken():
                self._receive(self._attend())
        except PeerError:
            return
        except SealiftError as error:  # nothing can be made of what follows
            self._metrics.refused(error.code)
            self._put(_refusal(0, error))

    def _receive(self, begun: bytes | None) -> None:
        """Take the next packet; ``begun`` is its first message, if that came already."""
        packet = receive_packet(
            self._session,
            self._settings.idle_s,
            max_payload=lambda _: self._settings.max_request_bytes,
            begun=begun,
        )
        self._take(packet)

    def _attend(self) -> bytes | None:
        """Leave the reading to ``SocketWatcher`` until this thread has to wait for something.

        Returns:
            What came of a packet whose rest this thread has to read; None if nothing did.

        Raises:
            PeerError: the client said nothing for too long.
            SealiftError: what was sent does not parse, or is refused.
        """
        descriptor = self._session.descriptor
        if descriptor is None:
            return None
        self._heard_s, self._attended = self._clock(), True
        if self._arrivals.watch(descriptor, self._read_now):
            self._await_own()
        self._arrivals.forget(descriptor, self._read_now)
        with self._reading:  # whoever reads at this moment ends first
            idle, self._attended = self._attended, False
            begun, self._begun = self._begun, None
        if self._failed is not None:
            raise self._failed
        if idle and self._clock() - self._heard_s >= self._settings.idle_s:
            raise peer_timeout()
        return begun

    def _await_own(self) -> None:
        with self._changed:
            while self._attended and not self._ending:
                left_s = self._settings.idle_s - (self._clock() - self._heard_s)
                if left_s <= 0:
                    return
                self._changed.wait(left_s)

    def _read_now(self) -> bool:
        """In the thread of ``SocketWatcher``: take what is here; True if there may be more."""
        with self._reading:
            if not self._attended:
                return False
            try:
                return self._take_one()
            except Exception as error:  # whatever it is, it is this client's alone
                self._failed = error
                self._own()
                return False

    def _take_one(self) -> bool:
        message = self._session.receive_now()
        if message is not None:
            self._heard_s = self._clock()
            if is_whole(message):
                self._receive(message)
            else:
                self._begun = message
        if self._begun is not None or self._session.must_wait or self._untaken():
            self._own()
            return False
        return message is not None and self._session.has_ahead

    def _own(self) -> None:
        """Its own thread goes on reading."""
        if (descriptor := self._session.descriptor) is not None:
            self._arrivals.forget(descriptor, self._read_now)
        with self._changed:
            self._attended = False
            self._changed.notify_all()

    def _untaken(self) -> bool:
        with self._changed:
            return len(self._outbox) >= UNTAKEN

    def _await_taken(self) -> bool:
        """Until the client took answers, if many wait for it; False at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._ending or len(self._outbox) < UNTAKEN)
            return not self._ending

    def _take(self, packet: Packet) -> None:
        header = packet.header
        if isinstance(header, Cancel):
            with self._changed:
                question = self._open.get(header.id)
            if question is not None:
                self._scheduler.cancel(question)
            return
        if not isinstance(header, InferenceRequest):
            raise MalformedError(
                "the client sent a packet that only servers send", code="bad-packet"
            )
        if header.id <= self._last_id:
            raise MalformedError("a request was sent twice", code="bad-packet")
        self._last_id = header.id
        try:
            self._ask(header, packet.payload)
        except SealiftError as error:
            self._metrics.refused(error.code)
            self._close(header.id)
            self._put(_refusal(header.id, error))

    def _ask(self, header: InferenceRequest, payload: Buffer) -> None:
        self._check(header, payload)
        question = PendingQuestion(
            client=self._client,
            identity=self._identity,
            work=header.work,
            rows=header.rows,
            payload=payload,
            steps=min(header.steps or self._form.max_steps, self._form.max_steps),
            deadline_s=self._clock() + self._settings.request_s,
            deliver=_Delivery(self, header.id, pad=header.pad),
            refuse=lambda error: self._refuse(header.id, error),
            room=self._has_room,
            stalled_s=self._stalled_s,
        )
        with self._changed:
            self._open[header.id] = question
        self._metrics.add("questions")
        self._scheduler.ask(question)

    def _check(self, header: InferenceRequest, payload: Buffer) -> None:
        form = self._form
        offered = {"predict": form.outputs, "generate": form.tokens}[header.work]
        if offered is None:
            raise bad_request(f"this model does not support {header.work}")
        if header.steps < 0:
            raise bad_request("the number of steps is negative")
        if not 1 <= header.rows <= form.max_rows:
            raise bad_request(
                f"the request has {header.rows} rows; it must have 1 to {form.max_rows}"
            )
        wanted = header.rows * form.inputs.row_bytes
        if wanted > self._settings.max_request_bytes:
            raise too_large(wanted, self._settings.max_request_bytes)
        if len(payload) != wanted:
            raise bad_request(
                f"the request has {len(payload)} bytes; these rows need {wanted}"
            )
        try:
            demand_rows(payload, form.inputs)
        except MalformedError as error:
            raise bad_request(f"{error.field}: {error.why}") from None

    def _has_room(self) -> bool:
        with self._changed:
            return len(self._outbox) < OUTBOX

    def _stalled_s(self) -> float:
        """How long there was no room, in all."""
        with self._changed:
            return self._full_s + max(0.0, self._clock() - self._full_since_s)

    def deliver(
        self, id_: int, answered: InferenceAnswer, rows: Buffer, *, pad: bool
    ) -> None:
        """Queue an answer, unless nobody waits for it any more."""
        with self._changed:
            if self._open.get(id_) is None:
                return
            if answered.final:
                del self._open[id_]
        self._put(answered, rows, pad=pad)

    def _refuse(self, id_: int, error: Exception) -> None:
        error = require_kind(error, SealiftError)
        if self._close(id_):
            self._put(_refusal(id_, error))

    def _close(self, id_: int) -> bool:
        with self._changed:
            return self._open.pop(id_, None) is not None

    def _abandon(self) -> None:
        with self._changed:
            left, self._open = list(self._open.values()), {}
        for question in left:
            self._scheduler.cancel(question)

    def _put(self, header: Header, payload: Buffer = b"", *, pad: bool = False) -> None:
        """Send, or leave to the writer what its client would have to be waited for.

        Nearly every answer goes out here: to wake a thread for each costs more than to
        seal it.
        """
        with self._changed:
            if self._ending or self._sent_now(header, payload, pad=pad):
                return
            self._outbox.append((header, payload, pad))
            if len(self._outbox) == OUTBOX:
                self._full_since_s = self._clock()
            self._changed.notify_all()

    def _sent_now(self, header: Header, payload: Buffer, *, pad: bool) -> bool:
        if self._outbox or self._writing:  # answers keep their order
            return False
        try:
            return send_packet_now(self._session, header, payload, pad=pad)
        except SealiftError:  # the session is over: the writer closes it
            self._end()
            return True

    def _end(self) -> None:
        with self._changed:
            self._ending = True
            self._changed.notify_all()

    def _write(self) -> None:
        with suppress(SealiftError):
            while (packet := self._next()) is not None:
                header, payload, pad = packet
                send_packet(self._session, header, payload, pad=pad)
                self._scheduler.wake()
        # Nobody takes anything any more: the reader ends with the session.
        self._end()
        self._session.close()

    def _next(self) -> tuple[Header, Buffer, bool] | None:
        with self._changed:
            while not self._outbox and not self._ending:
                self._changed.wait()
            self._changed.notify_all()
            if len(self._outbox) == OUTBOX:  # there is room now
                self._full_s += self._clock() - self._full_since_s
                self._full_since_s = math.inf
            self._writing = bool(self._outbox)
            return self._outbox.popleft() if self._writing else None


class _Delivery:
    """Numbers the answers to one question."""

    def __init__(self, session: ClientSession, id_: int, *, pad: bool) -> None:
        self._session = session
        self._id = id_
        self._pad = pad
        self._number = 0

    def __call__(self, rows: Buffer, count: int, *, final: bool) -> None:
        answered = InferenceAnswer(
            id=self._id, number=self._number, rows=count, final=final
        )
        self._number += 1
        self._session.deliver(self._id, answered, rows, pad=self._pad)


def _refusal(id_: int, error: SealiftError) -> Refused:
    """What a client is told; of a failing model only that it failed (rule H8)."""
    if error.code == "recipe-timeout":
        line = "the model took too long"
        return Refused(id=id_, code="request-timeout", line=line)
    if error.code not in _TOLD:
        code, line = _UNTOLD[id_ > 0]
        return Refused(id=id_, code=code, line=line)
    retry_s = error.retry_s if isinstance(error, BusyError) else 0.0
    line = visible(error.why or error.what)[:MAX_LINE_CHARACTERS]
    return Refused(id=id_, code=error.code, line=line, retry_ms=int(retry_s * 1000))


_UNTOLD: Final = {
    True: ("model-failed", "the server keeps the reason"),
    False: ("bad-packet", "the packet could not be read"),
}
