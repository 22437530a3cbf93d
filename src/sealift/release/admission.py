"""What must hold besides every rule: in force, the last one, ended by nobody, and fresh.

Every release and every request about a checkpoint passes here. What may change while a
broker runs is looked at each time: a successor in the vault, a statement that a party
made meanwhile.
"""

from __future__ import annotations

import threading

from sealift.errors import IntegrityError, PolicyError, StaleError
from sealift.release.broker import Owner
from sealift.release.rollbackgate import RollbackGate
from sealift.release.signed import VerifiedAgreement
from sealift.release.statementdesk import StatementDesk
from sealift.release.vault import Vault


class Admission:
    """Decides for one broker. Threads may share it.

    Args:
        verified: The agreement that it serves.
        owner: For whom.
        vault: Remembers which agreement is in force.
        gate: Asks the owners which one was the last.
        statements: What parties said of it.
    """

    def __init__(
        self,
        verified: VerifiedAgreement,
        owner: Owner,
        vault: Vault,
        *,
        gate: RollbackGate,
        statements: StatementDesk,
    ) -> None:
        self._verified = verified
        self._owner = owner
        self._vault = vault
        self._gate = gate
        self._statements = statements
        self._lock = threading.Lock()
        self._challenges: set[bytes] = set()

    def admit(self, challenge: bytes | None) -> None:
        """The agreement is in force and the last one; the challenge is spent.

        Raises:
            StaleError: ``agreement-superseded``, ``agreement-rolled-back``,
                ``challenge-replayed``.
            PolicyError: ``agreement-vetoed``, ``agreement-cancelled``, ``owner-left``,
                ``quorum-missing``.
        """
        self.require_in_force()
        self._gate.require_open()
        if challenge is not None:
            self._spend(challenge)

    def require_in_force(self) -> None:
        """A successor, or a statement, may have come while this broker runs."""
        known = self._statements.verified()
        known.require_owner_signed(self._owner.name)
        line = self._verified.agreement.name
        if self._vault.in_force(line) != self._verified.digest:
            raise StaleError(
                "a successor of this agreement is in force",
                fix="Start the job again under the successor",
                code="agreement-superseded",
            )

    def _spend(self, challenge: bytes) -> None:
        with self._lock:
            if challenge in self._challenges:
                raise StaleError(
                    "this challenge was used before",
                    fix="Ask with a fresh one",
                    code="challenge-replayed",
                )
            self._challenges.add(challenge)


def bring_into_force(verified: VerifiedAgreement, owner: Owner, vault: Vault) -> None:
    """Begin to serve an agreement, if its owner signed it and its keys are the agreed.

    Raises:
        PolicyError: ``owner-unsigned``, ``owner-left``.
        IntegrityError: ``other-key``, what every release would fail of later.
        StaleError: ``agreement-superseded``, ``agreement-line``.
    """
    if verified.require_owner_signed(owner.name).sign != owner.key:
        raise PolicyError(
            f"the agreement names another key for {owner.name}",
            fix="Use the identity that signed it",
            code="owner-unsigned",
        )
    held = vault.resources()
    for resource in verified.agreement.resources_of(owner.name):
        if resource.name in held and held[resource.name] != resource.key:
            raise IntegrityError(
                f"the vault's key of {resource.name} is not the agreement's",
                why="the table was sealed again after the agreement was made",
                fix="Use the vault of that time, or sign a successor",
                code="other-key",
            )
    vault.activate(verified)
