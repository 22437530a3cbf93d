"""The gate of a broker whose agreement asks the owners which number was the last.

Closed until enough of them said that they serve this very agreement. An owner that went
on to a successor serves that one, so it is not among them. Once open, the gate stays so:
the agreement was the last one when this broker began to serve it, and a successor that
comes into force here supersedes it in any case.
Source: spec/release.md section Rollback (rule H6).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from sealift.errors import PolicyError
from sealift.release.agreement import Agreement
from sealift.release.rollback import Sighting, require_latest


class RollbackGate:
    """Collects what owners saw. Threads may share it.

    Args:
        agreement: That is to be served.
        own: This owner's sighting.
    """

    def __init__(self, agreement: Agreement, own: Sighting) -> None:
        self._agreement = agreement
        self._sightings = {own.owner: own}
        self._lock = threading.Lock()

    @property
    def missing(self) -> tuple[str, ...]:
        """Owners that are still to be asked; empty once the gate is open."""
        if self._is_open():
            return ()
        with self._lock:
            said = set(self._sightings)
        return tuple(name for name in self._agreement.holders if name not in said)

    @property
    def sightings(self) -> tuple[Sighting, ...]:
        """What owners said so far."""
        with self._lock:
            return tuple(self._sightings.values())

    def admit(self, sighting: Sighting) -> None:
        """An owner said what it serves.

        Raises:
            StaleError: ``agreement-rolled-back`` or ``agreement-forked``.
        """
        with self._lock:
            self._sightings[sighting.owner] = sighting
        try:
            self.require_open()
        except PolicyError:
            return  # too few so far

    def require_open(self) -> None:
        """Refuse to release before a quorum was heard.

        Raises:
            PolicyError: ``quorum-missing``.
            StaleError: ``agreement-rolled-back`` or ``agreement-forked``.
        """
        require_latest(self._agreement, self.sightings)

    def ask(self, see: Callable[[str], Sighting | None]) -> None:
        """Ask whoever is missing, once each.

        Args:
            see: Asks one owner's broker; None if it does not answer.
        """
        for owner in self.missing:
            sighting = see(owner)
            if sighting is not None:
                self.admit(sighting)

    def _is_open(self) -> bool:
        try:
            self.require_open()
        except PolicyError:
            return False
        return True
