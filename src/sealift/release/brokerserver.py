"""A broker at work: decide, seal, log and sync, then answer. In this order (rule H6).

If the entry cannot be written, no key leaves. Refusals are entries too, also those of
a handshake that failed before anything was asked. One thread may serve one session.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from sealift.attest.enrolment import Enrolment
from sealift.codec import encode
from sealift.crypto.identity import Identity
from sealift.crypto.keys import SecretKey
from sealift.crypto.sign import PublicKey
from sealift.errors import (
    EvidenceError,
    MalformedError,
    PeerError,
    PolicyError,
    RefusedError,
    SealiftError,
    StaleError,
    UnavailableError,
)
from sealift.events import Sink, discard, emit, unfailing
from sealift.ids import Digest
from sealift.release.admission import Admission, bring_into_force
from sealift.release.agreement import Resource
from sealift.release.audit import LogEntry, SignedTreeHead
from sealift.release.auditlog import Appended, AuditLog
from sealift.release.broker import (
    Owner,
    Peer,
    ReleaseInfo,
    ReleaseRequest,
    may_read_heads,
)
from sealift.release.brokermessages import (
    BrokerAnswer,
    BrokerRequest,
    BrokerSession,
    EnrolRequest,
    Refusal,
    Served,
)
from sealift.release.checkpoint import (
    CheckpointRequest,
    CheckpointStatus,
    Logged,
)
from sealift.release.checkpointdesk import Asker, CheckpointDesk
from sealift.release.enroldesk import EnrolDesk
from sealift.release.files import is_about_peer
from sealift.release.grant import KeyRelease, SealedKey, seal_key
from sealift.release.leasedesk import LeaseDesk, SessionVisit, shortest_heartbeat
from sealift.release.refusals import RefusalCount
from sealift.release.releasedesk import Asked, ReleaseDesk
from sealift.release.rollback import Sighting
from sealift.release.rollbackgate import RollbackGate
from sealift.release.signed import VerifiedAgreement
from sealift.release.standing import Standings
from sealift.release.statementdesk import StatementDesk
from sealift.release.vault import Vault

MAX_REQUESTS_PER_SESSION: Final = 256
# Not a successor: keys that went out under the agreement before stay good under it.
ENDS: Final = frozenset(
    {
        "agreement-vetoed",
        "agreement-cancelled",
        "owner-left",
    }
)


class Broker:
    """Serves one owner's resources under one agreement.

    Args:
        verified: The agreement that everybody signed.
        identity: The owner's.
        vault: Its keys; remembers the agreement in force.
        log: Its audit log.
        clock: Seconds since 1970: for validity that was agreed on, and for people.
        monotonic: Seconds that never go back: for leases (rule H5).
        sink: Where events go.
        statements: What parties say of the agreement meanwhile.

    Attributes:
        gate: Asks the owners which agreement was the last.
        leases: Of released keys.
        statements: What parties said of the agreement.

    Raises:
        PolicyError: if the owner did not sign the agreement.
        StaleError: if a later agreement was in force here.
        IntegrityError: if a key in the vault is not the one that was agreed on.
    """

    def __init__(
        self,
        verified: VerifiedAgreement,
        identity: Identity,
        *,
        vault: Vault,
        log: AuditLog,
        clock: Callable[[], float],
        monotonic: Callable[[], float] = time.monotonic,
        sink: Sink = discard,
        statements: StatementDesk | None = None,
    ) -> None:
        self._verified = verified
        self._identity = identity
        self._owner = Owner(identity.name, identity.public_key)
        self._vault = vault
        self._log = log
        self._clock = clock
        self._monotonic = monotonic
        self._sink = unfailing(sink)
        self._refusals = RefusalCount()
        bring_into_force(verified, self._owner, vault)
        self._served = self._append("agreement")
        own = Sighting(identity.name, verified.agreement.number, verified.digest)
        self.gate = RollbackGate(verified.agreement, own)
        self.statements = statements or StatementDesk(verified, clock=clock)
        self._admission = Admission(
            verified,
            self._owner,
            vault,
            gate=self.gate,
            statements=self.statements,
        )
        self.leases = self._open_leases()
        self._enrolling = EnrolDesk(
            verified, identity, record=self._record_enrolment, clock=clock
        )
        self._releases = self._open_releases()
        self._desk = self._open_checkpoints()

    def _open_leases(self) -> LeaseDesk:
        resources = self._verified.agreement.resources_of(self._owner.name)
        return LeaseDesk(
            self._owner,
            Standings(self._vault.ledger),
            heartbeat_s=shortest_heartbeat(resources),
            record=self._record_revocation,
            monotonic=self._monotonic,
        )

    def _open_releases(self) -> ReleaseDesk:
        return ReleaseDesk(
            self._verified,
            self._owner,
            self._vault,
            admit=self._admission.admit,
            append=self._append,
            tell=self._tell,
            refusals=self._refusals,
            clock=self._clock,
        )

    def _open_checkpoints(self) -> CheckpointDesk:
        return CheckpointDesk(
            self._verified,
            self._identity,
            self._owner,
            store=self._vault.checkpoints,
            log=self._log,
            clock=self._clock,
            admit=self._admission.admit,
            refusals=self._refusals,
        )

    def serve(
        self,
        session: BrokerSession,
        timeout_s: float | None = None,
        *,
        accepted_at_s: float = 0.0,
    ) -> None:
        """Answer one session until its peer closes it or falls silent."""
        visit = SessionVisit(session, self._monotonic, accepted_at_s)
        asked = 0
        while asked < MAX_REQUESTS_PER_SESSION:
            try:
                request = session.receive_message(BrokerRequest, timeout_s)
            except PeerError:
                return
            except (EvidenceError, PolicyError, StaleError) as error:
                # A renewal was refused. What was altered on the way is none: whoever
                # asked begins another session, and goes on within its lease.
                self.leases.fail(session.peer, error)
                raise
            asked += request.lease is None
            answer = self.answer(request, session, visit)
            visit.answered()
            session.send_message(answer)

    def answer(
        self,
        request: BrokerRequest,
        session: BrokerSession,
        visit: SessionVisit,
    ) -> BrokerAnswer:
        """Answer one request; a refusal is an answer too."""
        try:
            return self._answer(request, session, visit)
        except SealiftError as error:
            if is_about_peer(error):
                return BrokerAnswer(refusal=Refusal(error.code, str(error)))
            self._tell("broker.failed", rule=error.code, peer=session.peer.name)
            line = "the broker cannot answer now; its own output says why"
            return BrokerAnswer(refusal=Refusal(error.code, line))

    def record_refused_handshake(
        self, error: SealiftError, *, role: str = "", name: str = ""
    ) -> None:
        """Log a peer whose handshake was refused: it never came to ask.

        Only so many per process: strangers must not fill the disk that releases need.
        """
        if not isinstance(error, (RefusedError, MalformedError)):
            return
        self._tell("release.refused", rule=error.code, peer=name)
        if self._refusals.admit(None):
            try:
                self._append("refusal", role=role, peer=name[:63], rule=error.code)
            except UnavailableError as failure:
                self._tell("broker.failed", rule=failure.code, peer=name)

    def obey_statements(self) -> None:
        """End every lease once a statement, or its time, ended what keys go by.

        Raises:
            SealiftError: why nothing is released now, though leases go on.
        """
        try:
            self._admission.require_in_force()
        except SealiftError as error:
            if error.code not in ENDS:
                raise
            self.leases.revoke_open(error.code)

    def require_ready(self) -> None:
        """What must hold for any release at all.

        Raises:
            StaleError: ``agreement-superseded``.
            UnavailableError: if vault or log cannot be read.
        """
        self._admission.require_in_force()
        self._log.head()

    def open_leases(self) -> int:
        """How many instances hold keys under a lease now."""
        return self.leases.open_leases()

    @property
    def verified(self) -> VerifiedAgreement:
        """The agreement that it serves."""
        return self._verified

    def head(self) -> SignedTreeHead:
        """The latest signed head of this broker's log."""
        return self._log.head()

    def _answer(
        self, request: BrokerRequest, session: BrokerSession, visit: SessionVisit
    ) -> BrokerAnswer:
        self.leases.admit(session.peer)
        if request.release is not None:
            return BrokerAnswer(release=self._release(request.release, session, visit))
        if request.enrol is not None:
            return self._enrol(request.enrol, session)
        if request.lease is not None:
            return BrokerAnswer(standing=self.leases.answer(request.lease, visit))
        if request.checkpoint is not None:
            return self._answer_checkpoint(request.checkpoint, session)
        may_read_heads(session.peer, self._verified)
        if request.statement is not None:
            self.statements.admit(request.statement)
            with suppress(SealiftError):  # it is kept: the watch obeys it as well
                self.obey_statements()
        if request.statements or request.statement is not None:
            return BrokerAnswer(statements=self.statements.known())
        if request.sighting:
            self._admission.require_in_force()  # or we would say that it is the last one here
            served = self._served
            answer = Served(served.entry, served.inclusion, served.head)
            return BrokerAnswer(served=answer)
        if request.consistency is not None:
            wanted = request.consistency
            return BrokerAnswer(
                proof=self._log.consistency(wanted.first, wanted.second)
            )
        return BrokerAnswer(head=self._log.head())

    def _enrol(self, request: EnrolRequest, session: BrokerSession) -> BrokerAnswer:
        if request.begin is not None:
            credential = self._enrolling.begin(request.begin, session.th2)
            return BrokerAnswer(credential=credential)
        assert request.answer is not None
        signed = self._enrolling.finish(request.answer, session.peer, session.th2)
        return BrokerAnswer(enrolment=signed)

    def _answer_checkpoint(
        self, request: CheckpointRequest, session: BrokerSession
    ) -> BrokerAnswer:
        asker = Asker(session.peer, session.th2)
        answered = self._desk.answer(request, asker)
        if request.commit is not None:
            number = str(request.commit.number)
            self._tell("checkpoint.committed", job=request.job, number=number)
        if isinstance(answered, CheckpointStatus):
            return BrokerAnswer(status=answered)
        if isinstance(answered, Logged):
            return BrokerAnswer(logged=answered)
        return BrokerAnswer(share=answered)

    def _release(
        self, request: ReleaseRequest, session: BrokerSession, visit: SessionVisit
    ) -> KeyRelease:
        """Over a session: sealed to its key, under a lease if the owner's rule says."""
        peer = session.peer

        def seal(data_key: SecretKey, info: ReleaseInfo) -> SealedKey:
            return seal_key(data_key, info, recipient=peer.hpke, owner=self._identity)

        def grant(resource: Resource) -> None:
            self.leases.grant(peer, resource, visit.judged_after_s)

        def opens(resource: Resource) -> None:
            self.leases.require_fresh(resource, visit.judged_after_s)

        asked = Asked(request, peer, session.th2, peer.instance, opens)
        sealed, logged, _ = self._releases.release(asked, seal, grant)
        return KeyRelease(sealed, logged.entry, logged.inclusion, logged.head)

    def _record_revocation(self, instance: PublicKey, rule: str, epoch: int) -> None:
        self._tell("lease.revoked", rule=rule, peer=instance.to_text())
        self._append("revocation", instance=instance, rule=rule, epoch=epoch)

    def _record_enrolment(self, peer: Peer, enrolment: Enrolment) -> None:
        self._tell("host.enrolled", peer=peer.name)
        self._append(
            "enrolment",
            role=peer.role.value,
            peer=peer.name,
            instance=peer.instance,
            info=Digest.of(encode(enrolment)),
        )

    def _append(self, kind: str, **fields: object) -> Appended:
        entry = LogEntry(
            kind=kind,  # type: ignore[arg-type]
            at_s=int(self._clock()),
            agreement=self._verified.digest,
            **fields,  # type: ignore[arg-type]
        )
        return self._log.append(entry)

    def _tell(self, kind: str, **fields: str) -> None:
        emit(self._sink, kind, owner=self._owner.name, **fields)
