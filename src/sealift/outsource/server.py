"""A share server: one trusted process at a time, products of what it sends.

Strangers cost a few seconds of one of a few threads and keep nobody out; whoever proved
itself is served if nobody is, and announces every product before it sends an operand, so
memory is bounded before any is taken. Operands stay until the gradients of their call are
answered. Whatever is out of turn, of another length or no share ends the connection,
never the server.
Source: spec/shares.md section 7.

An array that one thread fills from its beginning while others use what is there.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Final

import numpy as np
import torch

from sealift.channel.transport.tcp import TcpListener, TcpTransport
from sealift.crypto.sign import sign_document
from sealift.errors import (
    MalformedError,
    PeerError,
    PolicyError,
    SealiftError,
    UnavailableError,
    require_kind,
    require_value,
)
from sealift.events import Sink, discard, emit
from sealift.ids import Digest
from sealift.numeric.kernels import Kernels
from sealift.numeric.keystream import SEED_BYTES
from sealift.numeric.residues import U32
from sealift.outsource.compute import (
    ShareProducts,
    is_small,
    require_share,
    small_product,
)
from sealift.outsource.masked import Share
from sealift.outsource.messages import (
    BEGIN_BYTES,
    PIPE_CONTEXT,
    VERSION,
    WORD_BYTES,
    Accepts,
    Announces,
    Begin,
    Message,
    Planned,
    Refuses,
    Sent,
    StepAnswers,
    answer_hasher,
    answered_together,
    are_together,
    encode_word,
    new_room,
    packed,
    parse_word,
    plan_step,
    room_for,
    seed_bytes,
)
from sealift.outsource.terms import OPERANDS, Direction, Forward, Layer, Tensor
from sealift.outsource.trace import Trace, Traces
from sealift.session.endpoint import Endpoint, PeerPolicy
from sealift.session.pipe import Pipe
from sealift.session.session import Session, accept

MAX_UNPROVEN: Final = 8
PROOF_FRAME_BYTES: Final = 1 << 20  # what strangers say is not longer
ANNOUNCE_S: Final = 600.0  # a rehearsal may lie in between
IDLE_S: Final = 86_400.0  # a peer whose machine is gone is noticed by the system
LEAVE_S: Final = 5.0
_PAUSE_S: Final = 0.05
MOST_LEAVING: Final = 1  # products that wait to be sent, beside the one that is made


class Filling:
    """How many numbers of an array are there.

    Args:
        there: So many from the beginning on.
    """

    def __init__(self, there: int = 0) -> None:
        self._there = there
        self._failed: BaseException | None = None
        self._changed = threading.Condition()

    def reach(self, numbers: int) -> None:
        """So many are there."""
        with self._changed:
            self._there = numbers
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """No more will be there: whoever waits raises the error."""
        with self._changed:
            self._failed = error
            self._changed.notify_all()

    def wait(self, numbers: int) -> None:
        """Until so many are there."""
        if self._there >= numbers:
            return
        with self._changed:
            self._changed.wait_for(lambda: self._there >= numbers or self._failed)
            if self._there < numbers and self._failed is not None:
                raise self._failed


FULL: Final = Filling(1 << 62)
"""Of arrays that are there already."""


class ShareServer:
    """Serves one share.

    Args:
        share: Which of the three this is.
        endpoint: Ours, with the party's identity.
        expect: What a trusted process must show.
        products: Computes.
        kernels: Make Z's masks.
        most_bytes: Memory that one job may take, if not half of what there is.
        sink: Gets ``shares.began``, ``shares.ended`` and ``shares.refused``.
    """

    def __init__(
        self,
        share: Share,
        endpoint: Endpoint,
        expect: PeerPolicy,
        *,
        products: ShareProducts,
        kernels: Kernels,
        most_bytes: int | None = None,
        sink: Sink = discard,
    ) -> None:
        self.share, self.endpoint, self._expect = share, endpoint, expect
        self.products, self.kernels = products, kernels
        self.most_bytes = most_bytes or products.memory_bytes
        self.sink = sink
        self._threads = torch.get_num_threads()
        self._unproven = threading.BoundedSemaphore(MAX_UNPROVEN)
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._session: Session | None = None  # of the job that is served
        self._served = threading.Lock()

    def serve(self, listener: TcpListener) -> None:
        """Serve whoever connects, until ``close`` or an exception of this thread."""
        try:
            while not self._closing.is_set():
                try:
                    transport = listener.accept()
                except PeerError:  # closed, or no descriptor is left
                    self._closing.wait(_PAUSE_S)
                    continue
                if not self._unproven.acquire(blocking=False):
                    transport.close()
                    continue
                threading.Thread(
                    target=self._meet, args=(transport,), name="shares", daemon=True
                ).start()
        finally:
            self.close()

    def close(self) -> None:
        """Serve nobody any more, and let go of the job under way. Idempotent."""
        self._closing.set()
        with self._lock:
            session = self._session
        if session is not None:
            session.close()
        if self._served.acquire(timeout=LEAVE_S):
            self._served.release()

    def _meet(self, transport: TcpTransport) -> None:
        torch.set_num_threads(self._threads)  # torch keeps it for each thread
        try:
            with ExitStack() as leaving:
                leaving.callback(transport.close)
                session = leaving.enter_context(self._session_over(transport))
                self._serve_session(session, transport)
        except SealiftError as error:
            emit(self.sink, "shares.refused", reason=error.code, error=str(error))
        except (
            MemoryError,
            RuntimeError,
        ) as error:  # torch's name for it is the latter
            emit(self.sink, "shares.refused", reason="no-memory", error=str(error))

    def _session_over(self, transport: TcpTransport) -> Session:
        try:
            transport.max_received_bytes = PROOF_FRAME_BYTES
            session = accept(transport, self.endpoint, self._expect)
            transport.max_received_bytes = transport.max_frame_bytes
            return session
        finally:
            self._unproven.release()

    def _serve_session(self, session: Session, transport: TcpTransport) -> None:
        if not self._served.acquire(blocking=False):
            session.receive(ANNOUNCE_S)
            why = "the server works on another job"
            session.send(encode_word(Refuses("server-busy", why)))
            return
        try:
            with self._lock:
                self._session = session
            if not self._closing.is_set():
                ServedJob(self, session, transport).run()
        finally:
            with self._lock:
                self._session = None
            self._served.release()


class ComingOperand:
    """A tensor's residues, of which some may still be on their way.

    Attributes:
        residues: (moduli, *shape).
    """

    def __init__(
        self, products: ShareProducts, sent: Sent, share: U32, filled: Filling
    ) -> None:
        self.residues = products.residues_of(sent.shape, sent.basis)
        self._products, self._basis, self._filled = products, sent.basis, filled
        self._share, self._there = share.reshape(sent.shape), 0

    def until(self, images: int) -> None:
        """Wait until so many images, or outputs of a kernel, are there.

        Raises:
            MalformedError: code ``bad-share``.
        """
        if images <= self._there:
            return
        some = slice(self._there, images)
        self._filled.wait(images * (self._share.size // len(self._share)))
        self._products.keep_some(self._share[some], self._basis, self.residues[:, some])
        self._there = images
        if images == len(self._share):
            self._share = new_room(0)  # the numbers themselves are not kept

    def whole(self) -> torch.Tensor:
        """All of it."""
        self.until(self.residues.shape[1])
        return self.residues


Kept = dict[Tensor, ComingOperand | U32]  # of a small layer the shares


class ServedJob:
    """One trusted process's products, from its announcement on."""

    def __init__(
        self, server: ShareServer, session: Session, transport: TcpTransport
    ) -> None:
        self._server, self._session, self._transport = server, session, transport
        self._products = server.products
        self._leaving: deque[Future[None]] = deque()
        self._begun = 0

    def run(self) -> None:
        """Serve until the peer leaves.

        Raises:
            SealiftError: if it does so otherwise than by closing, or says what is wrong.
        """
        self._traces = self._announced()
        self._digest = self._traces.digest()
        self._plans = [plan_step(each.trace) for each in self._traces.known]
        with (
            ThreadPoolExecutor(1, "shares come") as self._receiver,
            ThreadPoolExecutor(1, "shares leave") as self._sender,
            Pipe(
                self._session, self._transport, PIPE_CONTEXT, timeout_s=IDLE_S
            ) as self._pipe,
        ):
            emit(self._server.sink, "shares.began", traces=str(self._digest))
            while (begin := self._next()) is not None:
                self._step(begin)
                self._begun += 1
            self._pipe.abort()
        emit(self._server.sink, "shares.ended", steps=self._begun)

    def _announced(self) -> Traces:
        """What it announces, accepted; or refused, and the refusal told."""
        raw = self._session.receive(ANNOUNCE_S)
        try:
            found = require_kind(parse_word(raw, Announces), Announces)
            traces = self._check(found)
        except SealiftError as error:
            self._session.send(encode_word(Refuses(error.code, str(error)[:300])))
            raise
        word = Accepts(self._products.method, self._products.device.type)
        self._session.send(encode_word(word))
        return traces

    def _check(self, found: Announces) -> Traces:
        ours = self._server.share
        if found.version != VERSION:
            why = (
                f"the peer has version {found.version}; this server has version "
                f"{VERSION}"
            )
            raise PolicyError("the peer has another protocol version", why=why)
        if found.share != ours:
            why = f"this server computes with {ours}"
            raise PolicyError(
                f"the peer takes this server for the server of {found.share}", why=why
            )
        traces = found.traces()
        needed = _job_bytes(traces, self._products)
        if needed > self._server.most_bytes:
            raise UnavailableError(
                "the job's products do not fit in this server's memory",
                why=(
                    f"they need {needed} bytes; the server may use "
                    f"{self._server.most_bytes}"
                ),
                code="no-memory",
            )
        return traces

    def _next(self) -> Begin | None:
        """The next step; None once the peer says that there is none."""
        raw = bytearray(BEGIN_BYTES)
        try:
            self._pipe.receive_into(raw)
        except PeerError as error:
            if error.code == "session-closed":
                return None
            raise
        found = Begin.parse(raw)
        if found.trace >= len(self._traces.known):
            raise MalformedError("the step was not announced", code="bad-message")
        return found

    def _step(self, begin: Begin) -> None:
        plan = self._plans[begin.trace]
        self._hasher = answer_hasher(self._session, self._begun)
        self._kept: dict[int, Kept] = {}
        if self._server.share == "Z":
            self._step_ahead(plan)
        else:
            for planned in plan:
                self._answer(planned, self._operands(planned, self._coming(planned)))
        self._let_leave(0)
        self._pipe.send(self._signature(begin.step))

    def _step_ahead(self, plan: Sequence[Planned]) -> None:
        """Z's: all of a step's masks follow from seeds that came as it began."""
        seeds = bytearray(seed_bytes(plan))
        self._pipe.receive_into(seeds)
        seed = _cut(bytes(seeds), SEED_BYTES)
        answers: list[U32] | None = [] if answered_together(plan) else None
        for planned in plan:
            masks = [self._products.room(size) for size in planned.sizes]
            for each, mask in zip(planned.sent, masks, strict=True):
                self._server.kernels.uniform(next(seed), each.basis, mask)
            there = [(mask, FULL) for mask in masks]
            self._answer(planned, self._operands(planned, there), answers)
        if answers:
            self._send(answers)

    def _coming(self, planned: Planned) -> list[tuple[U32, Filling]]:
        """The operands of an exchange; large ones are received while others are used."""
        arrays, messages = room_for(planned.sizes, self._products.room)
        if len(messages) == 1:
            self._pipe.receive_into(messages[0].bytes)
            return [(each, FULL) for each in arrays]
        filled = [Filling() for _ in arrays]
        self._receiver.submit(self._receive, messages, filled)
        return list(zip(arrays, filled, strict=True))

    def _receive(self, messages: Sequence[Message], filled: Sequence[Filling]) -> None:
        try:
            for message in messages:
                self._pipe.receive_into(message.bytes)
                for tensor, here in message.covers:
                    filled[tensor].reach(here.stop)
        except BaseException as error:  # raised by whoever waits for them
            for each in filled:
                each.fail(error)

    def _operands(
        self, planned: Planned, shares: Sequence[tuple[U32, Filling]]
    ) -> Kept:
        """Those of an exchange, beside what is there of its call."""
        there: Kept = self._kept.pop(planned.call, {})
        small = is_small(planned.layer)
        for each, (share, filled) in zip(planned.sent, shares, strict=True):
            if small:
                filled.wait(each.size)
                require_share(share, each.basis)
                there[each.tensor] = share.reshape(each.shape)
            else:
                found = ComingOperand(self._products, each, share, filled)
                there[each.tensor] = found
        if isinstance(planned.exchange, Forward) and planned.exchange.later:
            self._kept[planned.call] = there
        return there

    def _answer(
        self, planned: Planned, operands: Kept, later: list[U32] | None = None
    ) -> None:
        """Large products leave as they are made; ``later`` takes those of a whole step."""
        if later is None and not are_together(planned.answered):
            for direction in planned.asked:
                self._send_as_made(planned.layer, direction, operands)
            return
        layer = planned.layer
        products = [self._whole(layer, each, operands) for each in planned.asked]
        if later is None:
            self._send(products)
        else:
            later += products

    def _whole(self, layer: Layer, direction: Direction, operands: Kept) -> U32:
        """A product, made in one piece."""
        a, b = (operands[each] for each in OPERANDS[direction])
        if isinstance(a, ComingOperand) and isinstance(b, ComingOperand):
            return self._products.product(layer, direction, a.whole(), b.whole())
        ours, theirs = (require_kind(each, np.ndarray) for each in (a, b))
        return small_product(self._server.kernels, layer, direction, ours, theirs)

    def _made(
        self, layer: Layer, direction: Direction, operands: Kept, out: U32
    ) -> Iterator[int]:
        """Make a product; how many of its numbers are there."""
        a, b = (operands[each] for each in OPERANDS[direction])
        if isinstance(a, ComingOperand) and isinstance(b, ComingOperand):
            shaped = out.reshape(layer.result(direction))
            yield from self._products.make(
                layer, direction, a.residues, b.whole(), shaped, until=a.until
            )
        else:
            out[:] = self._whole(layer, direction, operands).reshape(-1)
            yield out.size

    def _send_as_made(self, layer: Layer, direction: Direction, operands: Kept) -> None:
        out, made = self._products.room(math.prod(layer.result(direction))), Filling()
        self._let_leave(MOST_LEAVING)
        self._leaving.append(self._sender.submit(self._leave, out, made))
        try:
            for numbers in self._made(layer, direction, operands, out):
                made.reach(numbers)
        except BaseException as error:
            made.fail(error)
            raise

    def _leave(self, product: U32, made: Filling) -> None:
        for message in packed([product]):
            ((_, here),) = message.covers
            made.wait(here.stop)
            self._pipe.send(message.bytes)
            self._hasher.update(message.bytes)

    def _let_leave(self, most: int) -> None:
        """Wait until so many products at most are on their way."""
        while len(self._leaving) > most:
            self._leaving.popleft().result()

    def _send(self, products: Sequence[U32]) -> None:
        self._let_leave(0)
        for message in packed(products):
            self._pipe.send(message.bytes)
            self._hasher.update(message.bytes)

    def _signature(self, step: int) -> bytes:
        answered = StepAnswers(
            agreement=self._server.endpoint.agreement,
            share=self._server.share,
            traces=self._digest,
            pipe=Digest(self._pipe.id),
            begun=self._begun,
            step=step,
            answers=Digest(self._hasher.digest()),
        )
        return sign_document(
            answered, require_value(self._server.endpoint.identity)
        ).signature


def _job_bytes(traces: Traces, products: ShareProducts) -> int:
    """The most memory that a step of these traces takes at one time."""
    return max((_step_bytes(each.trace, products) for each in traces.known), default=0)


def _step_bytes(trace: Trace, products: ShareProducts) -> int:
    kept: dict[int, int] = {}
    most = leaving = 0  # bytes of the answers before, which may not have left
    for each in plan_step(trace):
        residues = sum(sent.size * len(sent.basis.moduli) for sent in each.sent)
        came = sum(sent.size for sent in each.sent) * WORD_BYTES
        answers = sum(each.answered) * WORD_BYTES
        working = max(products.working_bytes(each.layer, d) for d in each.asked)
        now = sum(kept.values()) + came + residues + answers + leaving + working
        most, leaving = max(most, now), answers
        forward = isinstance(each.exchange, Forward) and each.exchange.later
        kept[each.call] = residues if forward else 0
    return most


def _cut(raw: bytes, length: int) -> Iterator[bytes]:
    return (raw[at : at + length] for at in range(0, len(raw), length))
