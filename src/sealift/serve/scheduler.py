"""The one thread that works the model: takes batches and generations, routes results.

Guarantees: each answer goes to the question whose rows it was made of, by its place in
the batch; what a client no longer waits for is not begun, and a generation whose client
does not take its tokens waits, then ends, sooner if others wait for its place; batches and
steps of generations take turns.
A batch of several clients that fails is tried again question by question, so that one
client's rows cannot fail another's.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from sealift.errors import PeerError, SealiftError
from sealift.serve.batching import PendingQuestion, RequestQueue
from sealift.serve.modelworker import ModelWorker
from sealift.serve.protocol import busy
from sealift.train.job.settings import ServingTable

ACTIVE_DELAYS: Final = 10
LOOK_S: Final = 0.25  # how often late questions and slow clients are looked for


MAX_CODES: Final = 100  # refusals by name; strangers choose what fails
KEPT: Final = 2048  # newest latencies, for percentiles


class ServerMetrics:
    """Counts since the start, and the newest latencies."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._latencies_s: deque[float] = deque(maxlen=KEPT)

    def add(self, name: str, number: int = 1) -> None:
        """Count something."""
        with self._lock:
            self._numbers[name] += number

    def answered(self, latency_s: float) -> None:
        """A question was answered, so long after it arrived."""
        with self._lock:
            self._numbers["answered"] += 1
            self._latencies_s.append(latency_s)

    def refused(self, code: str) -> None:
        """A question or a client was refused."""
        with self._lock:
            known = code in self._refused or len(self._refused) < MAX_CODES
            self._refused[code if known else "other"] += 1

    def numbers(self) -> dict[str, int | float]:
        """Everything by name; percentiles are of the newest questions."""
        with self._lock:
            found: dict[str, int | float] = dict(sorted(self._numbers.items()))
            for code, count in sorted(self._refused.items()):
                found[f"refused_{code.replace('-', '_')}"] = count
            newest = sorted(self._latencies_s)
        for share, name in ((0.5, "p50_ms"), (0.99, "p99_ms")):
            if newest:
                place = min(len(newest) - 1, int(share * len(newest)))
                found[name] = round(newest[place] * 1000, 3)
        return found


@dataclass(eq=False, slots=True)
class _Stream:
    number: int
    question: PendingQuestion
    steps: int = 0
    moved_s: float = 0.0  # when its client last took something
    stalled_s: float = 0.0  # how long its client had taken nothing before it began
    overdue: bool = False


class Scheduler:
    """Works one model for many clients.

    Args:
        model: Answers; used by the thread of ``run`` alone.
        settings: How much waits, and how long: a generation whose client takes nothing
            waits ``request_s``; ``stall_s`` in all its time while others want its place.
        mixed: Whether a batch may have several clients' rows.
        clock: Monotonic seconds.
        metrics: Counts.
    """

    def __init__(
        self,
        model: ModelWorker,
        settings: ServingTable,
        *,
        mixed: bool = False,
        clock: Callable[[], float],
        metrics: ServerMetrics,
    ) -> None:
        self._model = model
        self._clock = clock
        self._metrics = metrics
        self._settings = settings
        self._queue = RequestQueue(settings, mixed=mixed)
        self._streams: deque[_Stream] = deque()
        self._changed = threading.Condition()
        self._asked_s: dict[object, float] = {}
        self._look_s = 0.0  # when late questions are looked for again
        self._stopping: SealiftError | None = None
        self._numbers = 0
        self._streams_next = False

    def ask(self, question: PendingQuestion) -> None:
        """Let a question wait for its turn.

        Raises:
            PeerError: ``busy``, or ``server-stopping``.
        """
        with self._changed:
            if self._stopping is not None:
                raise self._stopping
            now_s = self._clock()
            displaced = self._queue.admit(question, now_s)
            self._asked_s.pop(question.client, None)
            self._asked_s[question.client] = now_s  # who asked last stands last
            if question.work == "generate" or self._queue.changes_wait(
                question, now_s, self._active(now_s)
            ):
                self._changed.notify_all()
        for each in displaced:
            self._metrics.refused("busy")
            each.refuse(busy("other clients have fewer rows waiting", LOOK_S))

    def cancel(self, question: PendingQuestion) -> None:
        """Nobody waits for it any more."""
        with self._changed:
            question.gone = True
            self._look_s = 0.0
            self._changed.notify_all()

    def wake(self) -> None:
        """A client took something: a generation may go on."""
        with self._changed:
            if self._streams:
                self._changed.notify_all()

    def stop(self, reason: SealiftError) -> None:
        """Take no more questions; refuse those that wait, end after what is under way."""
        with self._changed:
            self._stopping = self._stopping or reason
            self._changed.notify_all()

    def waiting(self) -> tuple[int, int]:
        """(questions, rows) that wait now."""
        with self._changed:
            return self._queue.waiting, self._queue.waiting_rows

    def run(self) -> None:
        """Work until stopped."""
        while (work := self._next()) is not None:
            work()
        for each in self._leftovers():
            self._refuse(each, self._stopping or stopping())

    def _leftovers(self) -> list[PendingQuestion]:
        with self._changed:
            streams = [each.question for each in self._streams]
            self._streams.clear()
            return [*self._queue.everything(), *streams]

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while self._stopping is None:
                now_s = self._clock()
                if now_s >= self._look_s:
                    self._look_s = now_s + LOOK_S
                    if late := self._queue.late(now_s):
                        return partial(self._give_up, late)
                if (found := self._choose(now_s)) is not None:
                    return found
                wait_s = self._queue.wait_s(now_s, self._active(now_s))
                self._changed.wait(LOOK_S if wait_s is None else min(wait_s, LOOK_S))
            return None

    def _choose(self, now_s: float) -> Callable[[], None] | None:
        """Batches and steps in turn; a new generation is begun before either."""
        question = self._queue.take_stream(self._places())
        if question is not None:
            return partial(self._begin, question)
        stream = self._ready_stream(now_s) if self._streams_next else None
        if stream is None:
            batch = self._queue.take_batch(now_s, self._active(now_s))
            if batch:
                self._streams_next = True
                return partial(self._predict, batch)
            stream = self._ready_stream(now_s)
        self._streams_next = False
        return partial(self._step, stream) if stream is not None else None

    def _active(self, now_s: float) -> int:
        """Clients that asked just now: a batch waits for such, not for silent ones."""
        since_s = now_s - ACTIVE_DELAYS * self._settings.max_delay_ms / 1000
        while (
            self._asked_s
            and self._asked_s[client := next(iter(self._asked_s))] < since_s
        ):
            del self._asked_s[client]
        return len(self._asked_s)

    def _ready_stream(self, now_s: float) -> _Stream | None:
        """The next generation that can go on, or has to be ended."""
        for _ in range(len(self._streams)):
            stream = self._streams.popleft()
            self._streams.append(stream)
            stream.overdue = self._is_overdue(stream, now_s)
            question = stream.question
            if question.room() or question.gone or stream.overdue:
                return stream
        return None

    def _places(self) -> Counter[object]:
        return Counter(each.question.identity for each in self._streams)

    def _is_overdue(self, stream: _Stream, now_s: float) -> bool:
        question = stream.question
        if question.room():
            return False
        if now_s - stream.moved_s > self._settings.request_s:
            return True
        if question.stalled_s() - stream.stalled_s <= self._settings.stall_s:
            return False
        without = self._places()
        without[question.identity] -= 1
        return self._queue.awaits_place(without)

    def _predict(self, batch: list[PendingQuestion]) -> None:
        began_s = self._clock()
        rows = sum(each.rows for each in batch)
        try:
            found = memoryview(
                self._model.predict([each.payload for each in batch], rows)
            )
        except SealiftError as error:
            self._fail(batch, error)
            return
        with self._changed:
            self._queue.note_batch(rows, self._clock() - began_s)
        self._metrics.add("batches")
        self._metrics.add("rows", rows)
        self._route(batch, found, len(found) // rows)

    def _route(
        self, batch: list[PendingQuestion], found: memoryview, row_bytes: int
    ) -> None:
        at = 0
        for each in batch:
            end = at + each.rows * row_bytes
            self._finish(each)
            each.deliver(found[at:end], each.rows, final=True)
            at = end

    def _fail(self, batch: list[PendingQuestion], error: SealiftError) -> None:
        if len(batch) == 1:
            self._refuse(batch[0], error)
            return
        for each in batch:
            self._predict([each])

    def _begin(self, question: PendingQuestion) -> None:
        self._numbers += 1
        stream = _Stream(
            self._numbers,
            question,
            moved_s=self._clock(),
            stalled_s=question.stalled_s(),
        )
        try:
            self._model.begin(stream.number, question.payload, question.rows)
        except SealiftError as error:
            self._refuse(question, error)
            return
        with self._changed:
            self._streams.append(stream)

    def _step(self, stream: _Stream) -> None:
        question = stream.question
        if question.gone or stream.overdue:
            self._end(stream)
            with suppress(SealiftError):
                self._model.drop(stream.number)
            ended = PeerError(
                "the server ended the generation",
                why="its tokens were not read in time, or it was cancelled",
                code="tokens-not-taken",
            )
            self._refuse(question, ended)
            return
        try:
            found = self._model.next(stream.number, question.rows)
        except SealiftError as error:
            self._end(stream)
            self._refuse(question, error)
            return
        stream.steps += 1
        stream.moved_s = self._clock()
        self._metrics.add("steps")
        if found is None or stream.steps >= question.steps:
            self._close(stream, found)
        else:
            question.deliver(found, question.rows, final=False)

    def _close(self, stream: _Stream, found: bytearray | None) -> None:
        question = stream.question
        self._end(stream)
        if found is not None:
            with suppress(SealiftError):
                self._model.drop(stream.number)
        self._finish(question)
        rows = question.rows if found is not None else 0
        question.deliver(found or b"", rows, final=True)

    def _end(self, stream: _Stream) -> None:
        with self._changed:
            self._streams.remove(stream)

    def _give_up(self, late: list[PendingQuestion]) -> None:
        for each in late:
            refusal = PeerError(
                "the server did not process the request in time",
                code="request-timeout",
            )
            self._refuse(each, refusal)

    def _finish(self, question: PendingQuestion) -> None:
        self._forget(question)
        self._metrics.answered(self._clock() - question.arrived_s)

    def _refuse(self, question: PendingQuestion, error: SealiftError) -> None:
        self._forget(question)
        self._metrics.refused("cancelled" if question.gone else error.code)
        question.refuse(error)

    def _forget(self, question: PendingQuestion) -> None:
        question.payload = b""
        with self._changed:
            self._queue.forget(question)


def stopping() -> PeerError:
    """The refusal of a server that is going away."""
    return PeerError("the server is stopping", code="server-stopping")
