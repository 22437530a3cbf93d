"""Who is here: the live sessions of an orchestrator, by role and name. Thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from sealift.errors import PeerError
from sealift.ids import Role
from sealift.session.session import Session
from sealift.travel.peers import say_role
from sealift.travel.visit.state import Clock

Key = tuple[Role, str]


class Roster:
    """Sessions by (role, name); who came last under a key replaces the session before.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._sessions: dict[Key, Session] = {}
        self._arrivals: dict[Key, int] = {}
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

    def find(self, role: Role, name: str) -> Session | None:
        """The live session, if there is one."""
        with self._changed:
            return self._sessions.get((role, name))

    def wait_for(self, role: Role, name: str, timeout_s: float) -> Session:
        """The session of a peer, once it is here.

        Raises:
            PeerError: if it does not arrive in time.
        """
        deadline = self._clock() + timeout_s
        with self._changed:
            while (role, name) not in self._sessions:
                left = deadline - self._clock()
                if left <= 0:
                    raise PeerError(
                        f"{say_role(role, name)} did not arrive in time",
                        code="peer-missing",
                    )
                self._changed.wait(left)
            return self._sessions[role, name]

    def sessions(self, role: Role) -> tuple[Session, ...]:
        """Every live session of one role."""
        with self._changed:
            items: Iterable[tuple[Key, Session]] = self._sessions.items()
            return tuple(session for key, session in items if key[0] is role)

    def close(self) -> None:
        """Close every session."""
        with self._changed:
            sessions = tuple(self._sessions.values())
            self._sessions.clear()
        for session in sessions:
            session.close()
