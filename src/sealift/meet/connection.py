"""The two ends of a meeting's session over the host's one port.

The host accepts circuits from the relay and serves each one in a thread. A guest dials, proves
that it was invited, and then asks what comes next until all parties have signed.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import Final

from sealift.crypto.identity import Identity
from sealift.crypto.sign import PublicKey
from sealift.errors import (
    MalformedError,
    PeerError,
    RefusedError,
    SealiftError,
    quote_foreign,
    require_value,
)
from sealift.events import Sink, emit
from sealift.ids import Role
from sealift.meet.guest import Guest, expect_host, guest_endpoint
from sealift.meet.host import Host, Reception
from sealift.meet.invitation import HOST, Invitation, meeting_digest
from sealift.meet.messages import (
    FROM_GUEST,
    FROM_HOST,
    Agree,
    Arrive,
    Bring,
    FromGuest,
    FromHost,
    Over,
    Propose,
    Welcome,
)
from sealift.meet.state import MeetingState
from sealift.session.endpoint import Endpoint, PeerPolicy
from sealift.session.relay.circuit import Circuit
from sealift.session.relay.client import RelayClient
from sealift.session.relay.envelope import Registry, prover
from sealift.session.session import Session, accept, connect
from sealift.travel.visit.messages import parse_message, send_message

ANSWER_S: Final = 30.0
IDLE_S: Final = 60.0  # a guest that is connected asks several times a second
AWAY_S: Final = 3.0  # without a connection, until a party counts as gone
ARRIVE_S: Final = 10.0  # from the begin of a session to the guest's proof
PROOF_S: Final = 60.0  # from a stranger's registration at the relay to its proof
MAX_STRANGERS: Final = 32  # circuits at one time without a proof of invitation
MAX_EACH: Final = 4  # conversations at one time of one party that proved its invitation
_NAME_REFUSED: Final = ("name-taken", "name-unproven")  # another key has it, or had


def guest_name(party: str) -> str:
    """At the relay, once the party's key is known."""
    return f"guest-{party}"


def places(book: MeetingState, meeting: bytes) -> Registry:
    """Whose names at the relay are whose: of each party that proved its invitation."""
    return Registry(meeting_digest(meeting), _Bound(book), proof_s=PROOF_S)


class _Bound(Mapping[str, PublicKey]):
    def __init__(self, book: MeetingState) -> None:
        self._book = book

    def __getitem__(self, name: str) -> PublicKey:
        return dict(self._bound())[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _key in self._bound())

    def __len__(self) -> int:
        return len(list(self._bound()))

    def _bound(self) -> Iterator[tuple[str, PublicKey]]:
        for seat in self._book.seats():
            if seat.card is not None:
                yield guest_name(seat.name), seat.card.sign


class Attendance:
    """Which parties that proved their invitation are connected; any thread may ask.

    Who dials again within `AWAY_S` was not away: a session ends where a person reads for long.

    Args:
        names: Who is registered at the relay now.
        clock: Monotonic seconds.
    """

    def __init__(
        self, names: Callable[[], Collection[str]], clock: Callable[[], float]
    ) -> None:
        self._names, self._clock = names, clock
        self._lock = threading.Lock()
        self._at: dict[str, str] = {}  # at the relay, by party
        self._absent_s: dict[str, float] = {}  # since when

    def arrive(self, party: str, name: str) -> None:
        """A party proved its invitation; ``name`` is what the relay knows it by."""
        with self._lock:
            self._at[party] = name

    def away(self) -> frozenset[str]:
        """Parties that were connected, and are not any more."""
        with self._lock:
            here, now_s = self._names(), self._clock()
            for party, name in self._at.items():
                if name in here:
                    self._absent_s.pop(party, None)
                else:
                    self._absent_s.setdefault(party, now_s)
            since = self._absent_s.items()
            return frozenset(party for party, at in since if now_s - at >= AWAY_S)


class MeetingListener:
    """Receives guests until the relay is closed.

    Args:
        relay: The host's own client of it.
        host: What the host has.
        sink: Where events go.
        vouch: Told the circuit of each guest that proved its invitation: it is no stranger.
        attendance: Told who each of them is.
    """

    def __init__(
        self,
        relay: RelayClient,
        host: Host,
        *,
        sink: Sink,
        vouch: Callable[[bytes], None] = lambda circuit: None,
        attendance: Attendance | None = None,
    ) -> None:
        self._relay = relay
        self._host = host
        self._sink = sink
        self._vouch = vouch
        self._attendance = attendance
        self._endpoint = Endpoint(
            role=Role.MEETING,
            name=HOST,
            agreement=meeting_digest(host.declaration.meeting),
            identity=host.identity,
        )
        self._free = threading.Semaphore(MAX_STRANGERS)
        self._each = {
            name: threading.Semaphore(MAX_EACH) for name in host.declaration.guests
        }

    def start(self) -> None:
        """Receive in a thread of its own."""
        threading.Thread(target=self.receive, name="door", daemon=True).start()

    def receive(self) -> None:
        """Receive until the connection to the relay ends."""
        while True:
            try:
                circuit = self._relay.accept(None)
            except PeerError:
                return
            if not self._free.acquire(blocking=False):
                circuit.close()
                continue
            threading.Thread(target=self._receive, args=(circuit,), daemon=True).start()

    def _receive(self, circuit: Circuit) -> None:
        anybody = PeerPolicy(roles=frozenset({Role.MEETING}), anonymous=True)
        try:
            with ExitStack() as stranger:
                stranger.callback(self._free.release)
                with accept(circuit, self._endpoint, anybody) as session:
                    reception = Reception(self._host, session.peer, session.th2)
                    if not self._take(session, reception, ARRIVE_S):
                        return
                    places = self._each[session.peer.name]
                    if not places.acquire(blocking=False):
                        return  # this party has MAX_EACH conversations already
                    with ExitStack() as guest:
                        guest.callback(places.release)
                        self._vouch(circuit.id)
                        if self._attendance is not None:
                            self._attendance.arrive(
                                session.peer.name, circuit.peer_name
                            )
                        stranger.close()
                        while self._take(session, reception, IDLE_S):
                            pass
        except SealiftError as error:
            emit(self._sink, "guest.gone", reason=error.code)

    def _take(self, session: Session, reception: Reception, wait_s: float) -> bool:
        """Take one message and answer it; whether more may follow."""
        message = parse_message(session.receive(wait_s), FROM_GUEST)
        answer = reception.take(message)  # type: ignore[arg-type]
        self._tell(session, message, answer)
        send_message(session, answer)
        return not isinstance(answer, Over)

    def _tell(self, session: Session, message: object, answer: FromHost) -> None:
        name = session.peer.name
        if isinstance(message, Arrive) and isinstance(answer, Welcome):
            emit(self._sink, "guest.arrived", name=name)
        elif isinstance(message, Arrive) and isinstance(answer, Over):
            emit(self._sink, "guest.refused", name=name, reason=answer.code)
        elif isinstance(answer, Over) and answer.party == name:  # it declined itself
            emit(self._sink, "guest.declined", name=name, line=answer.why)
        elif isinstance(message, Bring):
            emit(self._sink, "guest.brought", name=name)
        elif isinstance(message, Agree):
            emit(self._sink, "guest.agreed", name=name)
        elif isinstance(message, Propose):
            for column, texts in message.categories.items():
                emit(
                    self._sink, "guest.proposed",
                    name=name, column=quote_foreign(column),
                    texts=", ".join(map(quote_foreign, texts)),
                )  # fmt: skip


class Conversation:
    """A guest's end; a context manager.

    Args:
        invitation: Its own.
        identity: Its own.
        dial_s: How long the host may take to be there.

    Raises:
        PeerError: if nobody answers at any address, or another name is taken.
        RefusedError: if who answers is not who invited, or lets nobody in.
    """

    def __init__(
        self, invitation: Invitation, identity: Identity, *, dial_s: float
    ) -> None:
        guest = Guest(invitation, identity)
        with ExitStack() as stack:
            relay = stack.enter_context(_dial(invitation, identity, dial_s))
            circuit = relay.open(HOST, wait_s=dial_s)
            endpoint = guest_endpoint(invitation, identity)
            policy = expect_host(invitation)
            self._session = stack.enter_context(connect(circuit, endpoint, policy))
            told = self.say(guest.arrive(self._session.th2))
            if not isinstance(told, Welcome):
                raise _not_let_in(told)
            guest.welcome(told, self._session.th2)
            self.contested = told.contested
            self._stack = stack.pop_all()

    def say(self, message: FromGuest) -> FromHost:
        """Say something, and hear what comes next.

        Raises:
            PeerError: if the host is gone.
            MalformedError: if it makes no sense.
        """
        send_message(self._session, message)
        raw = self._session.receive(ANSWER_S)
        return parse_message(raw, FROM_HOST)  # type: ignore[return-value]

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()


def _dial(invitation: Invitation, identity: Identity, dial_s: float) -> RelayClient:
    """The first address where somebody answers; by its own name once that is known."""
    failed: PeerError | None = None
    for address in invitation.addresses:
        host, _, port = address.rpartition(":")
        place, own = (host.strip("[]"), int(port)), guest_name(invitation.name)
        prove = prover(identity, meeting_digest(invitation.meeting), own)
        try:
            return RelayClient.dial(place, own, dial_s, prove)
        except PeerError as error:
            failed = failed or error
            if error.code not in _NAME_REFUSED:
                continue
        stranger = f"new-{secrets.token_hex(8)}"
        with suppress(PeerError):
            return RelayClient.dial(place, stranger, dial_s)
    failed = require_value(failed, "an invitation has an address")
    raise failed


def _not_let_in(told: FromHost) -> SealiftError:
    if not isinstance(told, Over):
        return MalformedError("the host sent no welcome", code="bad-message")
    if told.code in ("not-invited", "invitation-used-twice"):
        return RefusedError(quote_foreign(told.why), code=told.code)
    why = quote_foreign(told.why)
    return RefusedError("the host refused this party", why=why, code="not-invited")
