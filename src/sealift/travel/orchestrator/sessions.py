"""Who is here: the orchestrator's door, and the live sessions by role and name.

Holders show their party's identity, accelerators evidence. Somebody who fails is turned
away and told about in an event; the door stays open.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final

from sealift.errors import PeerError, SealiftError
from sealift.events import Sink, emit
from sealift.ids import Role
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.broker.inforce import StatementsInForce
from sealift.session.endpoint import Endpoint
from sealift.session.relay.circuit import Circuit
from sealift.session.relay.client import RelayClient
from sealift.session.session import Session, accept
from sealift.travel.peers import (
    TELLER,
    accelerator_names,
    expect_accelerator,
    expect_data_owner,
    registry_of,
    say_role,
)
from sealift.travel.visit.messages import (
    Failed,
    Said,
    await_end,
    receive_message,
    send_message,
)
from sealift.travel.visit.state import Clock

Key = tuple[Role, str]


class LiveSessions:
    """Sessions by (role, name); who came last under a key replaces the session before.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._sessions: dict[Key, Session] = {}
        self._arrivals: dict[Key, int] = {}
        self._not_coming: dict[Key, SealiftError] = {}
        self._ended: SealiftError | None = None
        self._changed = threading.Condition()

    def enter(self, session: Session, arrival: int = 0) -> None:
        """A peer arrived, or came back.

        Args:
            session: With it.
            arrival: Number of its circuit: a handshake that took longer than that of a
                later one replaces nobody.
        """
        key = (session.peer.role, session.peer.name)
        with self._changed:
            late = key in self._sessions and arrival < self._arrivals[key]
            former = session if late else self._sessions.get(key)
            if not late:
                self._sessions[key], self._arrivals[key] = session, arrival
                self._changed.notify_all()
        if former is not None:
            former.close()

    def leave(self, session: Session) -> None:
        """A peer is gone; a session that was replaced already is left alone."""
        key = (session.peer.role, session.peer.name)
        with self._changed:
            if self._sessions.get(key) is session:
                del self._sessions[key]
                self._changed.notify_all()

    def await_no_more(self, key: Key, why: SealiftError) -> None:
        """This one does not come."""
        with self._changed:
            self._not_coming[key] = why
            self._changed.notify_all()

    def end(self, error: SealiftError) -> None:
        """Nobody is waited for any more: what a party said ends the job."""
        with self._changed:
            self._ended = self._ended or error
            self._changed.notify_all()

    def find(self, role: Role, name: str) -> Session | None:
        """The live session, if there is one."""
        with self._changed:
            return self._sessions.get((role, name))

    def wait_for(self, role: Role, name: str, timeout_s: float) -> Session:
        """The session of a peer, once it is here.

        Raises:
            PeerError: if it does not arrive in time, or at all (``await_no_more``).
        """
        deadline = self._clock() + timeout_s
        with self._changed:
            while (role, name) not in self._sessions:
                if known := self._not_coming.get((role, name)):
                    raise PeerError(known.what, why=known.why, code=known.code)
                left = deadline - self._clock()
                if left <= 0:
                    raise PeerError(
                        f"{say_role(role, name)} did not connect in time",
                        code="peer-missing",
                    )
                self._changed.wait(left)
            return self._sessions[role, name]

    def gather(self, wanted: Sequence[Key], quiet_s: float) -> None:
        """Wait until all are here, or until none of them has arrived for so long.

        Each one that is here for the first time starts the time again: many parties may
        take long to start though nobody is missing. One that comes and goes does not.

        Raises:
            SealiftError: what ended the job meanwhile (``end``).
        """
        with self._changed:
            fewest, until_s = len(wanted), self._clock() + quiet_s
            while missing := sum(
                each not in self._sessions and each not in self._not_coming
                for each in wanted
            ):
                if self._ended is not None:
                    raise self._ended
                if missing < fewest:
                    fewest, until_s = missing, self._clock() + quiet_s
                left_s = until_s - self._clock()
                if left_s <= 0:
                    return
                self._changed.wait(left_s)
            # Whoever ended the job may have been the last that was missing.
            if self._ended is not None and any(e not in self._sessions for e in wanted):
                raise self._ended

    def close(self) -> None:
        """Close every session."""
        with self._changed:
            sessions = tuple(self._sessions.values())
            self._sessions.clear()
        for session in sessions:
            session.close()


MAX_GREETED: Final = 24  # at one time under an accelerator's name: anybody has that
MAX_GREETED_EACH: Final = 8  # under a party's, which it proved
TELLER_S: Final = 5.0


class Acceptor:
    """Accepts circuits in a thread of its own until that connection is closed.

    Args:
        relay: The orchestrator's own client of it.
        endpoint: With the operator's identity.
        agreement: Verified.
        sessions: Gets every established session.
        vouch: Told the circuit of an accelerator whose evidence was accepted.
        sink: Where events go.
        accelerators: Their names.
        statements: Keeps what parties say of the agreement.
        obey: Called when one of them said something new.
    """

    def __init__(
        self,
        relay: RelayClient,
        endpoint: Endpoint,
        agreement: VerifiedAgreement,
        *,
        sessions: LiveSessions,
        vouch: Callable[[bytes], None],
        sink: Sink,
        accelerators: Sequence[str] = accelerator_names(),
        statements: StatementsInForce,
        obey: Callable[[], None],
    ) -> None:
        self._relay = relay
        self._endpoint = endpoint
        self._agreement = agreement
        self._sessions = sessions
        self._vouch = vouch
        self._sink = sink
        self._most = dict.fromkeys(registry_of(agreement).keys, MAX_GREETED_EACH)
        self._statements, self._obey = statements, obey
        self._accelerators = frozenset(accelerators)
        self._most |= dict.fromkeys(accelerators, MAX_GREETED)
        self._greeted: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="acceptor", daemon=True)

    def start(self) -> None:
        """Begin to accept."""
        self._thread.start()

    def join(self) -> None:
        """Wait for the end; the connection must be closed before."""
        self._thread.join()

    def _run(self) -> None:
        for arrival in count(1):
            try:
                circuit = self._relay.accept(None)
            except PeerError:
                return
            if not self._take_place(circuit.peer_name):
                circuit.close()
                continue
            threading.Thread(
                target=self._greet, args=(circuit, arrival), daemon=True
            ).start()

    def _take_place(self, name: str) -> bool:
        """Nobody's circuits cost another name its places; strange names have none."""
        with self._lock:
            free = self._greeted[name] < self._most.get(name, 0)
            self._greeted[name] += free
            return free

    def _greet(self, circuit: Circuit, arrival: int) -> None:
        try:
            self._admit(circuit, arrival)
        finally:
            with self._lock:
                self._greeted[circuit.peer_name] -= 1

    def _admit(self, circuit: Circuit, arrival: int) -> None:
        name = circuit.peer_name
        is_accelerator = name in self._accelerators
        try:
            policy = (
                expect_accelerator(self._agreement, name)
                if is_accelerator
                else expect_data_owner(self._agreement)
            )
            session = accept(circuit, self._endpoint, policy)
            if name.startswith(TELLER):
                self._listen(session)
                return
        except SealiftError as error:
            emit(self._sink, "role.refused", name=name, line=str(error))
            return
        if is_accelerator:
            self._vouch(circuit.id)
        self._sessions.enter(session, arrival)
        peer = session.peer
        emit(self._sink, "role.arrived", role=peer.role.value, name=peer.name)

    def _listen(self, session: Session) -> None:
        """What a party says of the agreement; it is obeyed once that party knows it was heard."""
        with session:
            said = receive_message(session, Said, timeout_s=TELLER_S)
            try:
                self._statements.admit(said.statement)
            except SealiftError as error:
                send_message(session, Failed(error.code, str(error)))
                return
            try:
                send_message(session, said)
                await_end(session)
            finally:  # it is kept, whether or not its teller still hears so
                self._obey()
