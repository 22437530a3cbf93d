"""A holder's own side: what its party said of the agreement, and what its broker sees.

Both are watched all the time, besides the decision before each frame: whoever left hangs
up on everybody, and whoever lost its lease gets nothing (spec/release.md sections
Statements and Leases).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from sealift.crypto.sign import PublicKey
from sealift.errors import JobError, SealiftError
from sealift.events import Sink
from sealift.release.agreement import KeyLease
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.agreement.statements import ENDS
from sealift.release.broker.standing import Standing, shortest_lease
from sealift.release.broker.statements import StatementDesk
from sealift.release.client.lease import ask_standing
from sealift.session.relay.circuit import Circuit
from sealift.session.session import Session
from sealift.travel.holder.leasewatch import LeaseWatch
from sealift.travel.holder.watcher import Watcher
from sealift.travel.visit.state import Clock

HOME_S: Final = 0.25  # how often our own side is looked at, sending or not

MeetBroker = Callable[[], Session]
SayStanding = Callable[[], str]


class OwnSide:
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
        statements: StatementDesk,
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
    def visit(self, instance: PublicKey, circuit: Circuit) -> Iterator[SayStanding]:
        """Our broker's word on an instance before each frame: why not, or nothing."""
        with self.open(circuit):
            if self._terms is None:
                yield str  # nothing: nobody keeps a lease
                return
            watch = self._leases_of(instance, self._terms)
            with watch.visit(circuit.close):
                yield watch.standing

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
        self.ended = JobError("our own side is not watched any more", why=error)
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
            asked = Standings(self._meet_broker, instance)
            watch = LeaseWatch(asked, terms, self._clock, self._sink)
            watch.start()
            self._leases = instance, watch
            return watch


class Standings:
    """Asks the own broker where an instance stands, in a session that stays open.

    Args:
        meet_broker: Opens one; again, when it broke.
        instance: Whom it is about.
    """

    def __init__(self, meet_broker: MeetBroker, instance: PublicKey) -> None:
        self._meet_broker = meet_broker
        self._instance = instance
        self._session: Session | None = None

    def __call__(self, wait_s: float) -> Standing:
        """The broker's answer; waits up to so many seconds for bad news."""
        try:
            if self._session is None:
                self._session = self._meet_broker()
            return ask_standing(self._session, self._instance, wait_s=wait_s)
        except SealiftError:
            if self._session is not None:
                self._session.close()
                self._session = None
            raise
