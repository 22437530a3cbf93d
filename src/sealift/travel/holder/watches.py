"""What a holder watches: its party's own statements, and what its broker says of leases.

Both are watched all the time, besides the decision before each frame: whoever left hangs
up on everybody, and whoever lost its lease gets nothing (spec/release.md sections
Statements and Leases). The owner's broker judges the instance's evidence again and
again; the holder asks it, and an answer comes the moment the instance is revoked.
Silence is no (rule H5); what was given before is not recalled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from sealift.crypto.sign import PublicKey
from sealift.errors import JobError, SealiftError, StaleError
from sealift.events import Sink, discard, emit, unfailing
from sealift.release.agreement import KeyLease
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.agreement.statements import ENDS
from sealift.release.broker.inforce import StatementsInForce
from sealift.release.broker.leases import shortest_lease
from sealift.release.broker.messages import HEARTBEAT_MISSING, LeaseStatus
from sealift.release.client import BrokerRefusedError, ask_lease
from sealift.session.relay.circuit import Circuit
from sealift.session.session import Session
from sealift.travel.visit.state import Clock

HOME_S: Final = 0.25  # how often our own side is looked at, sending or not
RETRY_S: Final = 0.5  # of a watch that failed for a moment
ASK_AGAIN_S: Final = 0.1
MARGIN_S: Final = 0.5
_PASSES: Final = (SealiftError, OSError, MemoryError)

Ask = Callable[[float], LeaseStatus]
Look = Callable[[], float | None]
MeetBroker = Callable[[], Session]
SayRefusal = Callable[[], str]


class LeaseWatch:
    """Watches one instance, for all visits to it.

    Args:
        ask: Asks the own broker; waits up to the seconds given for bad news.
        lease: What our rule says of keys.
        clock: Monotonic seconds.
        sink: Where events go.
    """

    def __init__(
        self, ask: Ask, lease: KeyLease, clock: Clock, sink: Sink = discard
    ) -> None:
        self._ask = ask
        self._lease = lease
        self._clock = clock
        self._rule = ""
        self._heard = False  # a good word, and none since that says otherwise
        self._good_at_s = clock()
        self._changed = threading.Condition()
        self._stops: set[Callable[[], None]] = set()
        self._watcher = Watcher("lease", self._look, broken=self._break, sink=sink)

    @contextmanager
    def visit(self, stop: Callable[[], None]) -> Iterator[Callable[[], None]]:
        """What to ask before each frame; it waits while the instance is silent.

        Args:
            stop: Called once the lease has ended: ends the flow of rows.

        Raises:
            StaleError: ``lease-revoked``; or no good word within a heartbeat.
        """
        self._require_good(self._lease.heartbeat_s + MARGIN_S)
        with self._changed:
            self._stops.add(stop)
        try:
            self.require_good()
            yield self.require_good
        finally:
            with self._changed:
                self._stops.discard(stop)

    def require_good(self) -> None:
        """Wait until the instance is known to stand well, or raise ``lease-revoked``."""
        self._require_good(self._lease.lease_s + MARGIN_S)

    def refusal(self) -> str:
        """Wait likewise; why it gets no more rows, or nothing: what decides is told."""
        try:
            self.require_good()
        except StaleError:
            return self._rule or HEARTBEAT_MISSING
        return ""

    def start(self) -> None:
        """Begin to ask."""
        self._watcher.start()

    def close(self) -> None:
        """Ask no more."""
        self._watcher.stop()

    def _require_good(self, patience_s: float) -> None:
        deadline_s = self._clock() + patience_s
        with self._changed:
            while not self._is_good():
                if self._ended() or self._clock() >= deadline_s:
                    raise StaleError(
                        "the accelerator lost its lease, so it receives no more rows",
                        why=self._rule
                        or "this owner's broker knows no lease of the accelerator",
                        code="lease-revoked",
                    )
                self._changed.wait(ASK_AGAIN_S)

    def _is_good(self) -> bool:
        recent = self._clock() <= self._good_at_s + self._lease.heartbeat_s + MARGIN_S
        return not self._rule and self._heard and recent

    def _ended(self) -> bool:
        silent_s = self._clock() - self._good_at_s
        return bool(self._rule) or silent_s > self._lease.lease_s + MARGIN_S

    def _look(self) -> float | None:
        """Ask once. Only an open lease is a good word.

        Of an instance without a lease nobody demands evidence: one that gave its lease
        back, and goes on, would never be missed. A good word counts from when it was
        asked for: whoever carries the answer may have held it back.
        """
        pause_s, asked_at_s = ASK_AGAIN_S, self._clock()
        try:
            standing = self._ask(self._lease.heartbeat_s / 2 if self._heard else 0.0)
        except BrokerRefusedError as error:
            self._say(error.rule)
        except SealiftError:  # away, or altered on the way: it is asked again
            pass
        else:
            pause_s = self._hear(standing, asked_at_s)
        if self._ended():
            self._stop_all()
            return None
        return pause_s

    def _hear(self, standing: LeaseStatus, asked_at_s: float) -> float:
        with self._changed:
            if standing.good or standing.ends_s:
                self._heard = standing.good and standing.due_s > 0
                if self._heard:
                    self._good_at_s = asked_at_s
            else:
                self._rule = standing.rule or HEARTBEAT_MISSING
            self._changed.notify_all()
        return 0.0 if self._heard else ASK_AGAIN_S

    def _say(self, rule: str) -> None:
        with self._changed:
            self._rule = rule
            self._changed.notify_all()

    def _stop_all(self) -> None:
        with self._changed:
            stops = tuple(self._stops)
        for stop in stops:
            stop()

    def _break(self, error: BaseException) -> None:
        """A bug of ours: without a watch no rows go out."""
        self._say("watch-broken")
        self._stop_all()


class PartyWatch:
    """What this party's own processes say while it holds.

    Args:
        name: The party.
        agreement: Verified.
        statements: What parties said of it meanwhile.
        meet_broker: Opens a session with our own broker.
        clock: Monotonic seconds.
        sink: Where events go.

    Attributes:
        ended: What ended our part, once something has.
    """

    def __init__(
        self,
        name: str,
        agreement: VerifiedAgreement,
        statements: StatementsInForce,
        *,
        meet_broker: MeetBroker,
        clock: Clock,
        sink: Sink,
    ) -> None:
        self._name = name
        self._terms = shortest_lease(agreement.agreement.resources_of(name))
        self._statements = statements
        self._meet_broker = meet_broker
        self._clock = clock
        self._sink = sink
        self.ended: SealiftError | None = None
        self._lock = threading.Lock()
        self._circuits: set[Circuit] = set()
        self._leases: tuple[PublicKey, LeaseWatch] | None = None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look at home all the time: what ends our part hangs up on everybody."""
        home = Watcher("home", self._look, broken=self._break, sink=self._sink)
        home.start()
        try:
            yield
        finally:
            home.stop()
            if self._leases is not None:
                self._leases[1].close()

    @contextmanager
    def open(self, circuit: Circuit) -> Iterator[None]:
        """A circuit that is closed when our part ends."""
        with self._lock:
            self._circuits.add(circuit)
        try:
            self.require_staying()
            yield
        finally:
            with self._lock:
                self._circuits.discard(circuit)

    @contextmanager
    def visit(self, instance: PublicKey, circuit: Circuit) -> Iterator[SayRefusal]:
        """Our broker's word on an instance before each frame: why not, or nothing."""
        with self.open(circuit):
            if self._terms is None:
                yield str  # nothing: nobody keeps a lease
                return
            watch = self._leases_of(instance, self._terms)
            with watch.visit(circuit.close):
                yield watch.refusal

    def require_staying(self) -> None:
        """We did not leave, and the agreement did not end.

        Raises:
            PolicyError: ``owner-left``, ``agreement-vetoed``, ``agreement-cancelled``.
            SealiftError: what lies beside the agreement cannot be read.
        """
        if self.ended is not None:
            raise self.ended
        try:
            self._statements.verified().require_owner_signed(self._name)
        except SealiftError as error:
            if error.code in ENDS:
                self.ended = error
            raise

    def _look(self) -> float | None:
        try:
            self.require_staying()
        except SealiftError:
            if self.ended is None:
                raise
            self._hang_up()
            return None
        return HOME_S

    def _break(self, error: BaseException) -> None:
        """A bug of ours: nothing is brought unwatched."""
        self.ended = JobError(
            "the check of this owner's own rules has stopped", why=error
        )
        self._hang_up()

    def _hang_up(self) -> None:
        with self._lock:
            circuits = tuple(self._circuits)
        for circuit in circuits:
            circuit.close()

    def _leases_of(self, instance: PublicKey, terms: KeyLease) -> LeaseWatch:
        """One watch for all visits; an accelerator that came back is another instance."""
        with self._lock:
            if self._leases is not None and self._leases[0] == instance:
                return self._leases[1]
            if self._leases is not None:
                self._leases[1].close()
            asked = _AskedBroker(self._meet_broker, instance)
            watch = LeaseWatch(asked, terms, self._clock, self._sink)
            watch.start()
            self._leases = instance, watch
            return watch


class _AskedBroker:
    """Asks the own broker where an instance stands, in a session that stays open."""

    def __init__(self, meet_broker: MeetBroker, instance: PublicKey) -> None:
        self._meet_broker = meet_broker
        self._instance = instance
        self._session: Session | None = None

    def __call__(self, wait_s: float) -> LeaseStatus:
        try:
            if self._session is None:
                self._session = self._meet_broker()
            return ask_lease(self._session, self._instance, wait_s=wait_s)
        except SealiftError:
            if self._session is not None:
                self._session.close()
                self._session = None
            raise


class Watcher:
    """Looks again and again in a thread of its own, until it is stopped.

    What the system refuses for a moment (no descriptors, a full disk, no memory) is told
    once and tried again; nothing that ends a watch ends it alone. Any other error is a
    bug of ours: whoever relies on the watch is told, and stops.

    Args:
        name: Of the thread, and in events.
        look: Looks once; seconds until the next time, or None to end.
        broken: Called once with what no pause mends; ends what relies on the watch.
        sink: Gets ``watch.failing`` and ``watch.mended``.
    """

    def __init__(
        self,
        name: str,
        look: Look,
        *,
        broken: Callable[[BaseException], None],
        sink: Sink,
    ) -> None:
        self._name = name
        self._look = look
        self._broken = broken
        self._sink = unfailing(sink)
        self._failing = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self, wait_s: float = 0.0) -> None:
        """Look no more; safe to repeat, from any thread."""
        self._over.set()
        if wait_s and self._thread is not threading.current_thread():
            self._thread.join(wait_s)

    @property
    def over(self) -> bool:
        """Whether it was stopped, or is at its end."""
        return self._over.is_set()

    def _run(self) -> None:
        pause_s: float | None = 0.0
        try:
            while pause_s is not None and not self._over.wait(pause_s):
                pause_s = self._look_once()
        except BaseException as error:
            self._broken(error)
        finally:
            self._over.set()

    def _look_once(self) -> float | None:
        try:
            pause_s = self._look()
        except _PASSES as error:
            self._tell("watch.failing", failing=True, line=str(error))
            return RETRY_S
        self._tell("watch.mended", failing=False)
        return pause_s

    def _tell(self, kind: str, *, failing: bool, **fields: str) -> None:
        """Once when it begins, and once when it is over."""
        if failing is not self._failing:
            self._failing = failing
            emit(self._sink, kind, watch=self._name, **fields)
