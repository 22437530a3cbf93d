"""What a shared broker keeps of its owners: for each one a key, a vault, a broker. In RAM.

For every owner the process makes a key of its own, which signs in that owner's place and
from which the wrapping keys of its vault are derived; vault, use counts and leases are in
memory, and the audit log, which holds no key, is a file. So whoever copies the disk, or
puts an older copy back, gets no key and no use of one. When the process ends, all of it is
gone, and the owners entrust again (rule C10).
Source: spec/release.md section Shared broker.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sealift.channel.commitment import key_commitment
from sealift.codec import encode
from sealift.crypto.hpke import HpkePrivateKey
from sealift.crypto.identity import Identity, create_identity
from sealift.crypto.keys import SecretKey
from sealift.errors import (
    IntegrityError,
    PolicyError,
    SealiftError,
    StaleError,
)
from sealift.events import Sink, discard, emit, unfailing
from sealift.ids import Digest, Role
from sealift.release.agreement import Party, Resource
from sealift.release.auditlog import AuditLog
from sealift.release.broker import CHALLENGE_BYTES, EXPIRY_S, Peer
from sealift.release.brokerserver import Broker
from sealift.release.entrust import require_shared_broker
from sealift.release.entrustmessages import (
    EntrustedKey,
    EntrustInfo,
    Entrustment,
    verify_entrusted,
)
from sealift.release.signed import VerifiedAgreement
from sealift.release.speaking import foreign, require_in_force, verify_appointment
from sealift.release.statement import SignedStatement
from sealift.release.statementdesk import StatementDesk
from sealift.release.vault import Vault

# A veto ends releases as well; the keys stay until their owner, or the time, says so.
ENDED: Final = frozenset({"appointment-expired", "appointment-withdrawn", "owner-left"})


@dataclass(frozen=True, slots=True)
class Meeting:
    """One session with an owner, at the desk for that owner.

    Attributes:
        peer: As the session proved it.
        th2: Names the session.
        hpke: Our private half for it; the public one is under the evidence.
        deputy: The key that was made for the owner, likewise.
        challenge: What we asked it to put into what it sends.
        began_s: When we did, by the monotonic clock.
    """

    peer: Peer
    th2: bytes
    hpke: HpkePrivateKey
    deputy: Identity
    challenge: bytes
    began_s: float


@dataclass(frozen=True, slots=True)
class Seat:
    """One owner's part of the shared broker."""

    deputy: Identity
    broker: Broker
    vault: Vault
    log: AuditLog

    def close(self) -> None:
        """Destroy the keys; the log stays."""
        for name in self.vault.resources():
            self.vault.destroy(name)
        self.vault.close()
        self.deputy.seed.wipe()
        self.log.close()


class Custody:
    """The seats of one shared broker. Threads may share it.

    Args:
        verified: The agreement.
        folder: Gets one audit log for each appointment.
        clock: Seconds since 1970.
        monotonic: Seconds that never go back.
        statements: What parties say of the agreement.
        sink: Where events go.
    """

    def __init__(
        self,
        verified: VerifiedAgreement,
        folder: Path,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        statements: StatementDesk,
        sink: Sink = discard,
    ) -> None:
        self._verified = verified
        self._folder = folder
        self._clock = clock
        self._monotonic = monotonic
        self._sink = unfailing(sink)
        self._lock = threading.RLock()
        self._pending: dict[str, Identity] = {}
        self._seats: dict[str, Seat] = {}
        self.statements = statements

    def deputy(self, owner: str) -> Identity:
        """The key that would sign for an owner, fresh until it was appointed.

        Raises:
            PolicyError: ``not-entrusting``.
        """
        require_shared_broker(self._verified, owner)
        with self._lock:
            if owner not in self._pending:
                self._pending[owner] = create_identity(owner)
            return self._pending[owner]

    def meet(self, peer: Peer, th2: bytes, hpke: HpkePrivateKey) -> Meeting:
        """Begin with an owner that the session proved."""
        return Meeting(
            peer=peer,
            th2=th2,
            hpke=hpke,
            deputy=self.deputy(peer.name),
            challenge=secrets.token_bytes(CHALLENGE_BYTES),
            began_s=self._monotonic(),
        )

    def admit(self, given: Entrustment, meeting: Meeting) -> Seat:
        """Take an owner's keys, if all of it is what was agreed on.

        Raises:
            PolicyError: ``role-refused``, ``other-agreement``, ``already-entrusted``,
                ``appointment-foreign`` and the rest of ``verify_appointment``.
            StaleError: ``release-foreign``, ``expired``, ``appointment-expired``,
                ``appointment-withdrawn``.
            RefusedError: ``release-unsigned``.
            IntegrityError: ``other-key``.
            UnavailableError: if the log cannot be written.
        """
        owner = self._require_owner(meeting.peer)
        self._require_appointed(given, meeting)
        keys = self._open(given, meeting, owner)
        try:
            with self._lock:
                self._require_free(owner.name)
                self._pending.pop(owner.name, None)  # one key, one appointment, one log
                seat = self._make_seat(given, meeting.deputy, keys)
                self._seats[owner.name] = seat
        finally:
            for data_key in keys.values():
                data_key.wipe()
        emit(self._sink, "broker.entrusted", owner=owner.name)
        return seat

    def leave(self, owner: str) -> bool:
        """Destroy what is kept for an owner; whether there was anything.

        The end of its leases is logged first. The disk is the operator's: if it takes
        nothing, the keys go all the same, and with them whatever could renew a lease.
        """
        with self._lock:
            seat = self._seats.pop(owner, None)
            self._pending.pop(owner, None)
        if seat is None:
            return False
        self._end_leases(owner, seat)
        seat.close()
        emit(self._sink, "broker.gave-up", owner=owner)
        return True

    def withdraw(self, statement: SignedStatement, peer: Peer) -> bool:
        """Obey an owner that takes its keys back: known for good first, then gone.

        Raises:
            PolicyError: ``not-the-owner``: it is another party's word.
        """
        owner = self._require_owner(peer)
        if statement.statement.party != owner.name:
            raise PolicyError(
                "an owner withdraws for itself only", code="not-the-owner"
            )
        self.statements.admit(statement)
        return self.leave(owner.name)

    def sweep(self) -> tuple[str, ...]:
        """Give up the keys of owners whose appointment has ended, or who left."""
        with self._lock:
            seats = dict(self._seats)
        ended = []
        for owner, seat in seats.items():
            if self._has_ended(owner, seat):
                if self.leave(owner):
                    ended.append(owner)
            else:
                self._end_leases(owner, seat)  # of what was vetoed or cancelled
        return tuple(ended)

    @property
    def seats(self) -> dict[str, Seat]:
        """By owner."""
        with self._lock:
            return dict(self._seats)

    def close(self) -> None:
        """Destroy everything."""
        for owner in self.seats:
            self.leave(owner)

    def _end_leases(self, owner: str, seat: Seat) -> None:
        """If what keys are released by has ended."""
        try:
            seat.broker.obey_statements()
        except SealiftError as error:
            emit(self._sink, "broker.failed", owner=owner, rule=error.code)

    def _has_ended(self, owner: str, seat: Seat) -> bool:
        """By its time, or by its owner's word: a veto hides neither."""
        assert seat.log.appointment is not None
        said = seat.log.appointment.appointment
        if self._clock() > said.not_after or self._took_back(owner, said.at_s):
            return True
        try:
            seat.broker.require_ready()
        except SealiftError as error:
            return error.code in ENDED
        return False

    def _took_back(self, owner: str, at_s: int) -> bool:
        words = (each.statement for each in self.statements.known())
        return any(
            word.kind == "leave" or (word.kind == "withdraw" and word.at_s >= at_s)
            for word in words
            if word.party == owner
        )

    def _require_owner(self, peer: Peer) -> Party:
        party = self._verified.require_owner_signed(peer.name)
        if (peer.role, peer.identity) != (Role.HOLDER, party.sign):
            raise PolicyError("keys are entrusted by their owner", code="role-refused")
        if peer.agreement != self._verified.digest:
            raise PolicyError(
                "the owner works under another agreement", code="other-agreement"
            )
        return party

    def _require_appointed(self, given: Entrustment, meeting: Meeting) -> None:
        known = self.statements.verified()
        said = verify_appointment(given.appointment, known)
        if said.owner != meeting.peer.name:
            raise foreign("by another owner")
        if said.key != meeting.deputy.public_key:
            raise foreign("for another instance of a broker")
        require_in_force(said, known, self._clock())

    def _require_free(self, owner: str) -> None:
        if owner in self._seats:
            raise PolicyError(
                f"{owner} has entrusted its keys already",
                fix="Run `sealift broker withdraw` first; a new one ends open leases",
                code="already-entrusted",
            )

    def _open(
        self, given: Entrustment, meeting: Meeting, owner: Party
    ) -> dict[str, SecretKey]:
        if self._monotonic() - meeting.began_s > EXPIRY_S:
            raise StaleError("the keys came too late", fix="Try again", code="expired")
        resources = self._verified.agreement.resources_of(owner.name)
        if len(resources) != len(given.keys):
            raise foreign("with keys of other resources")
        pairs = zip(resources, given.keys, strict=True)
        return {
            resource.name: open_entrusted(each, meeting, resource, owner)
            for resource, each in pairs
        }

    def _make_seat(
        self, given: Entrustment, deputy: Identity, keys: dict[str, SecretKey]
    ) -> Seat:
        path = self._folder / log_name(deputy)
        log = AuditLog.create(path, deputy, self._clock, given.appointment)
        vault = Vault.in_memory(deputy)
        try:
            for name, data_key in keys.items():
                vault.store(name, data_key)
            broker = self._make_broker(given, deputy, vault, log)
        except BaseException:
            vault.close()
            log.close()
            raise
        return Seat(deputy, broker, vault, log)

    def _make_broker(
        self, given: Entrustment, deputy: Identity, vault: Vault, log: AuditLog
    ) -> Broker:
        return Broker(
            self._verified,
            deputy,
            vault=vault,
            log=log,
            clock=self._clock,
            monotonic=self._monotonic,
            sink=self._sink,
            statements=self.statements,
            appointment=given.appointment,
        )


def log_name(deputy: Identity) -> str:
    """One key, one log."""
    return f"{deputy.name}-{Digest.of(deputy.public_key.raw).short}.log"


def open_entrusted(
    given: EntrustedKey, meeting: Meeting, resource: Resource, owner: Party
) -> SecretKey:
    """A data key, if its owner sent it here, now, and it is the agreed one.

    Raises:
        StaleError: ``release-foreign``: for another session, resource or agreement.
        RefusedError: ``release-unsigned``.
        AuthenticationError: if it does not open.
        IntegrityError: ``other-key``.
    """
    expected = EntrustInfo(
        agreement=meeting.peer.agreement,
        resource=resource.name,
        owner=owner.name,
        recipient=meeting.th2,
        challenge=meeting.challenge,
    )
    if given.info != expected:
        raise StaleError(
            "the key was entrusted for something else",
            why="another agreement, resource, session or challenge",
            fix="Try again",
            code="release-foreign",
        )
    verify_entrusted(given, owner)
    data_key = meeting.hpke.open(encode(expected), given.sealed)
    if key_commitment(data_key, resource.name) != resource.key:
        data_key.wipe()
        raise IntegrityError(
            f"the key of {resource.name} is not the one in the agreement",
            fix="Entrust with the vault that the resource was sealed with",
            code="other-key",
        )
    return data_key
