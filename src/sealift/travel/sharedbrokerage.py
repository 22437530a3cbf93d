"""A shared broker as a process: a desk where owners entrust, and a broker for each.

Owners dial ``broker``, each under ``entrust-NAME``. The desk shows evidence, and for every
owner another key, made here, which the same handshake binds. What an owner entrusts is
served from then on under the name that its own broker would have.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from sealift.attest.attester import Attester
from sealift.channel.transports.transport import peer_timeout
from sealift.errors import MalformedError, PeerError, SealiftError
from sealift.events import Sink, discard, emit, unfailing
from sealift.ids import Role
from sealift.release.brokermessages import Refusal
from sealift.release.custody import Custody, Meeting, Seat
from sealift.release.entrustmessages import EntrustAnswer, EntrustRequest
from sealift.release.files import is_about_peer
from sealift.release.signed import VerifiedAgreement
from sealift.session.circuit import Circuit
from sealift.session.endpoint import Endpoint
from sealift.session.establish import accept
from sealift.session.link import DIAL_TIMEOUT_S, Link
from sealift.session.session import Session
from sealift.travel.brokerage import Brokerage
from sealift.travel.peers import expect_entrusting_owner, link_name

DESK: Final = link_name(Role.BROKER)
ENTRUST: Final = "entrust-"
MAX_EACH: Final = 4  # meetings under one name on the relay
MAX_MEETINGS: Final = 16  # each costs a piece of evidence
SILENCE_S: Final = 600.0  # a person reads what our evidence amounts to
SWEEP_S: Final = 1.0
LAST_SEATS_S: Final = 5.0

Serve = Callable[[Link], None]
# (name on the relay, what to do with the link): dials again when the relay is lost.
Keep = Callable[[str, Serve], None]


class _Opening:
    """Whether a seat came to be served under its name."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._error: SealiftError | None = None

    def linked(self) -> None:
        """It is."""
        self._done.set()

    def failed(self, error: SealiftError) -> None:
        """It is not, or not any more."""
        self._error = error
        self._done.set()

    def await_link(self) -> None:
        """Raises what went wrong, or PeerError ``peer-timeout``."""
        if not self._done.wait(DIAL_TIMEOUT_S):
            raise peer_timeout()
        if self._error is not None:
            raise self._error


class SharedBrokerage:
    """Serves one job.

    Args:
        agreement: Verified and equipped.
        custody: Keeps what owners entrust.
        attester: Proves this process to them.
        keep: Dials the relay under a name and serves, again if it is lost.
        sink: Where events go.
    """

    def __init__(
        self,
        agreement: VerifiedAgreement,
        custody: Custody,
        attester: Attester,
        *,
        keep: Keep,
        sink: Sink = discard,
    ) -> None:
        self._agreement = agreement
        self._custody = custody
        self._attester = attester
        self._keep = keep
        self._sink = unfailing(sink)
        self._taken: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._desk: Link | None = None
        self._links: dict[str, Link] = {}
        self._threads: list[threading.Thread] = []

    def serve(self) -> None:
        """Until every owner's part was told that the job has ended.

        Raises:
            PeerError: when the relay is gone before that.
        """
        sweeping = threading.Thread(target=self._sweep, name="sweep", daemon=True)
        sweeping.start()
        try:
            self._keep(DESK, self._take_owners)
        except PeerError:
            # With the job the orchestrator ends, and its relay: maybe before the seats,
            # which were told so, have come to their end here.
            self._await_seats()
            if not self._over.is_set():
                raise
        finally:
            self._over.set()
            self._custody.close()

    def _take_owners(self, link: Link) -> None:
        self._desk = link
        emit(self._sink, "broker.ready", broker=DESK)
        self._say_missing()
        while True:
            circuit = link.accept(None)
            if not self._take_place(circuit.peer_name):
                circuit.close()
                continue
            threading.Thread(
                target=self._meet, args=(circuit,), name=circuit.peer_name, daemon=True
            ).start()

    def _say_missing(self) -> None:
        """After a start, and after a restart: nothing is here that nobody entrusted."""
        there = self._custody.seats
        for owner in self._agreement.agreement.entrusting:
            if owner not in there:
                emit(self._sink, "broker.empty", owner=owner)

    def _take_place(self, name: str) -> bool:
        with self._lock:
            full = sum(self._taken.values()) >= MAX_MEETINGS
            if full or self._taken[name] >= MAX_EACH:
                return False
            self._taken[name] += 1
            return True

    def _meet(self, circuit: Circuit) -> None:
        try:
            owner = circuit.peer_name.removeprefix(ENTRUST)
            policy = expect_entrusting_owner(self._agreement, owner)
            with accept(circuit, self._endpoint(owner), policy) as session:
                self._serve_owner(session)
        except PeerError:
            return
        except SealiftError as error:
            emit(self._sink, "broker.refused", rule=error.code, peer=circuit.peer_name)
        finally:
            circuit.close()
            with self._lock:
                self._taken[circuit.peer_name] -= 1
                self._taken += Counter()  # forget names of which nobody is here

    def _endpoint(self, owner: str) -> Endpoint:
        return Endpoint(
            role=Role.BROKER,
            name=owner,
            agreement=self._agreement.digest,
            identity=self._custody.deputy(owner),
            attester=self._attester,
        )

    def _serve_owner(self, session: Session) -> None:
        meeting: Meeting | None = None
        while True:
            request = session.receive_message(EntrustRequest, SILENCE_S)
            try:
                if request.begin:
                    meeting = self._begin(session)
                    answer = EntrustAnswer(challenge=meeting.challenge)
                else:
                    answer = self._answer(request, session, meeting)
                    meeting = None
            except SealiftError as error:
                emit(
                    self._sink,
                    "broker.refused",
                    rule=error.code,
                    peer=session.peer.name,
                )
                answer = EntrustAnswer(refusal=_refusal(error))
            session.send_message(answer)

    def _begin(self, session: Session) -> Meeting:
        established = session.established
        return self._custody.meet(session.peer, session.th2, established.hpke)

    def _answer(
        self, request: EntrustRequest, session: Session, meeting: Meeting | None
    ) -> EntrustAnswer:
        if request.withdraw is not None:
            gone = self._custody.withdraw(request.withdraw, session.peer)
            self._hang_up(session.peer.name)
            return EntrustAnswer(withdrawn=gone)
        if request.keys is None or meeting is None:
            raise MalformedError("keys come after a challenge", code="bad-message")
        owner, seat = meeting.peer.name, self._custody.admit(request.keys, meeting)
        try:
            self._open_seat(owner, seat)
        except SealiftError:  # whoever is told no has no keys here
            self._custody.leave(owner)
            raise
        return EntrustAnswer(head=seat.broker.head())

    def _open_seat(self, owner: str, seat: Seat) -> None:
        """Serve it; raises PeerError if its name on the relay is not to be had."""
        opening = _Opening()
        thread = threading.Thread(
            target=self._serve_seat, args=(owner, seat, opening), daemon=True
        )
        with self._lock:
            self._threads.append(thread)
        thread.start()
        opening.await_link()

    def _serve_seat(self, owner: str, seat: Seat, opening: _Opening) -> None:
        """As the owner's own broker would, until the job has ended."""

        def serve(link: Link) -> None:
            with self._lock:
                self._links[owner] = link
            opening.linked()
            if self._custody.seats.get(owner) is not seat:
                return  # withdrawn in the meantime
            endpoint = Endpoint(
                role=Role.BROKER,
                name=owner,
                agreement=self._agreement.digest,
                identity=seat.deputy,
            )
            Brokerage(
                link,
                endpoint,
                self._agreement,
                broker=seat.broker,
                sink=self._sink,
                speaks=seat.log.appointment,
            ).serve()

        try:
            self._keep(link_name(Role.BROKER, owner), serve)
        except SealiftError as error:
            opening.failed(error)
            if self._custody.seats.get(owner) is seat:
                emit(self._sink, "broker.lost", owner=owner, line=str(error))
            self._custody.leave(owner)
        else:
            if self._custody.seats.get(owner) is seat:
                self._end(owner)

    def _await_seats(self) -> None:
        deadline = time.monotonic() + LAST_SEATS_S
        with self._lock:
            threads = tuple(self._threads)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _end(self, owner: str) -> None:
        """The job has ended for one owner; with the last one this process ends."""
        self._custody.leave(owner)
        if not self._custody.seats and not self._over.is_set():
            self._over.set()
            if self._desk is not None:
                self._desk.close()

    def _sweep(self) -> None:
        while not self._over.wait(SWEEP_S):
            for owner in self._custody.sweep():
                self._hang_up(owner)

    def _hang_up(self, owner: str) -> None:
        """Free the owner's name on the relay, for its own broker or a fresh seat."""
        with self._lock:
            link = self._links.pop(owner, None)
        if link is not None:
            link.close()


def _refusal(error: SealiftError) -> Refusal:
    if is_about_peer(error):
        return Refusal(error.code, str(error))
    return Refusal(error.code, "the broker cannot do that now; its output says why")
