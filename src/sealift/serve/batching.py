"""Which questions wait, and which of them are answered together. Pure: no threads.

Guarantees: what waits is bounded, in rows over all and in questions of each client, and
whoever is beyond that is told ``busy`` and when to come again; clients take turns, so
that nobody's many questions keep another's one waiting, nor out; without ``mixed`` a batch is of
one client alone. Time is an argument.
Source: spec/serve.md section Batches.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from sealift.errors import require_value
from sealift.ids import Buffer
from sealift.serve.protocol import Work, busy
from sealift.train.job.settings import ServingTable

WEIGHT: Final = 0.2  # of the newest batch in the running mean of times
LEAST_RETRY_S: Final = 0.01


class Deliver(Protocol):
    """Takes an answer to a question; never waits."""

    def __call__(self, rows: Buffer, count: int, *, final: bool) -> None:
        """Hand on ``count`` rows."""
        ...


@dataclass(eq=False, slots=True, kw_only=True)
class PendingQuestion:
    """One question while it is here.

    Attributes:
        client: Whose it is; batches are not mixed over it.
        identity: Whose share of the places for generations it takes: strangers are
            as many clients as they open sessions, but come from few addresses.
        work: What is asked.
        rows: How many.
        payload: The rows; emptied once they were handed on.
        steps: Most steps of a generation.
        deadline_s: When nobody waits for it any more.
        deliver: Takes answers.
        refuse: Takes the error, if there is none.
        room: Whether the client takes what was delivered.
        stalled_s: For how long, in all, it did not.
        gone: Whether the client cancelled it, or left.
    """

    client: object
    work: Work
    rows: int
    payload: Buffer
    deadline_s: float
    deliver: Deliver
    refuse: Callable[[Exception], None]
    steps: int = 0
    identity: object = None
    room: Callable[[], bool] = lambda: True
    stalled_s: Callable[[], float] = lambda: 0.0
    gone: bool = False
    arrived_s: float = 0.0


def places_each(settings: ServingTable) -> int:
    """Most places of one identity; whoever is alone needs one at least."""
    return settings.streams_each or max(1, settings.streams - 1)


@dataclass(slots=True)
class _Turns:
    """Questions of one kind, by client, and whose turn it is.

    Each question costs the same however many wait.
    """

    waiting: dict[object, deque[PendingQuestion]] = field(default_factory=dict)
    arrived: dict[PendingQuestion, None] = field(
        default_factory=dict
    )  # the oldest first
    rows: int = 0

    def put(self, question: PendingQuestion) -> None:
        self.waiting.setdefault(question.client, deque()).append(question)
        self.arrived[question] = None
        self.rows += question.rows

    def first(self) -> PendingQuestion | None:
        return next((queue[0] for queue in self.waiting.values()), None)

    def oldest(self) -> PendingQuestion | None:
        return next(iter(self.arrived), None)

    def take(self, question: PendingQuestion) -> None:
        """Take the head of a client's queue; the client goes to the end of the turns."""
        queue = self.waiting.pop(question.client)
        queue.popleft()
        if queue:
            self.waiting[question.client] = queue
        self._drop(question)

    def remove(self, question: PendingQuestion) -> bool:
        if question not in self.arrived:
            return False
        queue = self.waiting[question.client]
        queue.remove(question)
        if not queue:
            del self.waiting[question.client]
        self._drop(question)
        return True

    def _drop(self, question: PendingQuestion) -> None:
        del self.arrived[question]
        self.rows -= question.rows


class RequestQueue:
    """What waits at a server.

    Args:
        settings: How much, and how batches are made.
        mixed: Whether a batch may have several clients' rows.
    """

    def __init__(self, settings: ServingTable, *, mixed: bool = False) -> None:
        self._settings = settings
        self._mixed = mixed
        self._turns: dict[Work, _Turns] = {"predict": _Turns(), "generate": _Turns()}
        self._held: dict[object, int] = {}
        self._row_s = 0.0  # running mean of the time that a row takes

    @property
    def waiting_rows(self) -> int:
        """Rows that wait now."""
        return sum(turns.rows for turns in self._turns.values())

    @property
    def waiting(self) -> int:
        """Questions that wait now."""
        return sum(len(turns.arrived) for turns in self._turns.values())

    def admit(self, question: PendingQuestion, now_s: float) -> list[PendingQuestion]:
        """Let it wait.

        Returns:
            Those that wait no more: where all rows are taken, the newest of clients who
            have more of them waiting than this one.

        Raises:
            PeerError: code ``busy``; ``retry_s`` says when to come again.
        """
        held = self._held.get(question.client, 0)
        if held >= self._settings.max_waiting:
            raise busy(f"{held} of your requests are already waiting", self._retry_s())
        displaced = self._displaced_by(question)
        for each in displaced:
            self.forget(each)
        question.arrived_s = now_s
        self._held[question.client] = held + 1
        self._turns[question.work].put(question)
        return displaced

    def _displaced_by(self, question: PendingQuestion) -> list[PendingQuestion]:
        excess = self.waiting_rows + question.rows - self._settings.max_waiting_rows
        if (
            excess <= 0
        ):  # nearly always: then a question's cost does not grow with others
            return []
        found: list[PendingQuestion] = []
        waiting = sorted(self.everything(), key=lambda each: each.arrived_s)
        rows: Counter[object] = Counter()
        for each in waiting:
            rows[each.client] += each.rows
        own = rows[question.client] + question.rows
        while excess > 0 and waiting:
            heaviest, most = rows.most_common(1)[0]
            if most <= own or heaviest == question.client:
                raise busy("too many rows are waiting", self._retry_s())
            newest = next(e for e in reversed(waiting) if e.client == heaviest)
            waiting.remove(newest)
            found.append(newest)
            rows[heaviest] -= newest.rows
            excess -= newest.rows
        return found

    def take_batch(self, now_s: float, clients: int) -> list[PendingQuestion]:
        """Questions to answer together now; none if others may still join them.

        Args:
            now_s: Monotonic seconds.
            clients: Clients that are here; when each of them waits, no other can join.
        """
        turns = self._turns["predict"]
        first = turns.first()
        if first is None or not self._ripe(now_s, clients):
            return []
        taken, rows = [], 0
        while (each := self._fitting(first, rows)) is not None:
            turns.take(each)
            taken.append(each)
            rows += each.rows
        return taken

    def take_stream(self, held: Counter[object]) -> PendingQuestion | None:
        """A generation to begin now, if there is one and a place for it.

        Args:
            held: Places taken, by identity; who has fewest comes first.
        """
        able = self._with_place(held)
        if not able:
            return None
        chosen = min(able, key=lambda each: held[each.identity])
        self._turns["generate"].take(chosen)
        return chosen

    def awaits_place(self, held: Counter[object]) -> bool:
        """Whether a generation waits that could begin with so many places taken."""
        return bool(self._with_place(held))

    def _with_place(self, held: Counter[object]) -> list[PendingQuestion]:
        if held.total() >= self._settings.streams:
            return []
        firsts = [queue[0] for queue in self._turns["generate"].waiting.values()]
        most = places_each(self._settings)
        return [each for each in firsts if held[each.identity] < most]

    def wait_s(self, now_s: float, clients: int) -> float | None:
        """How long until a batch is ripe; None if nothing waits for one."""
        oldest = self._turns["predict"].oldest()
        if oldest is None:
            return None
        if self._ripe(now_s, clients):
            return 0.0
        ripe_s = oldest.arrived_s + self._settings.max_delay_ms / 1000
        return max(0.0, ripe_s - now_s)

    def changes_wait(
        self, question: PendingQuestion, now_s: float, clients: int
    ) -> bool:
        """Whether a batch is ripe sooner with this question, which waits, than before it."""
        first = self._turns["predict"].oldest() is question
        return first or self._ripe(now_s, clients)

    def forget(self, question: PendingQuestion) -> None:
        """It was answered, refused, or nobody wants it any more."""
        self._turns[question.work].remove(question)
        held = self._held.get(question.client, 0) - 1
        if held > 0:
            self._held[question.client] = held
        else:
            self._held.pop(question.client, None)

    def late(self, now_s: float) -> list[PendingQuestion]:
        """Those that wait and that nobody waits for any more."""
        waiting = self.everything()
        return [each for each in waiting if each.gone or each.deadline_s <= now_s]

    def everything(self) -> list[PendingQuestion]:
        """All that wait."""
        return [each for turns in self._turns.values() for each in turns.arrived]

    def note_batch(self, rows: int, seconds: float) -> None:
        """A batch took so long: what ``busy`` tells clients is made of it."""
        row_s = seconds / max(1, rows)
        old = self._row_s or row_s
        self._row_s = (1 - WEIGHT) * old + WEIGHT * row_s

    def _ripe(self, now_s: float, clients: int) -> bool:
        turns, settings = self._turns["predict"], self._settings
        if len(turns.waiting) >= clients or turns.rows >= settings.max_batch_rows:
            return True
        oldest = require_value(turns.oldest())
        return now_s - oldest.arrived_s >= settings.max_delay_ms / 1000

    def _fitting(self, first: PendingQuestion, rows: int) -> PendingQuestion | None:
        """The next one that fits; the first always does."""
        for client, queue in self._turns["predict"].waiting.items():
            alone = not self._mixed and client != first.client
            if not alone and (
                not rows or rows + queue[0].rows <= self._settings.max_batch_rows
            ):
                return queue[0]
        return None

    def _retry_s(self) -> float:
        return max(LEAST_RETRY_S, self.waiting_rows * self._row_s)
