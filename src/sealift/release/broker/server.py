"""A broker at work: decide, seal, log and sync, then answer. In this order (rule H6).

If the entry cannot be written, no key leaves. Refusals are entries too, also those of
a handshake that failed before anything was asked. One thread may serve one session.

A broker's work on enrolment: whose TPM does an attestation key live in?

A host without an enrolment of this owner connects without evidence and gets only a
challenge: a credential that only the agreed TPM can open, and only for the key that the
host names. A correct answer leads to the enrolment. It is logged, and no key of the owner
depends on it alone, because evidence is appraised completely in every session.
Source: spec/evidence-tpm.md section Enrolment.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from sealift.attest.reference import require_references
from sealift.attest.tpm.enrolment import (
    Enrolment,
    EnrolmentRequest,
    SignedEnrolment,
    check_answer,
    make_challenge,
    require_pair,
    sign_enrolment,
    verify_endorsement,
)
from sealift.codec import encode
from sealift.crypto.identity import Identity
from sealift.crypto.keys import SecretKey
from sealift.crypto.sign import PublicKey, Signer
from sealift.crypto.tpmcredential import Credential
from sealift.errors import (
    EvidenceError,
    MalformedError,
    PeerError,
    PolicyError,
    RefusedError,
    SealiftError,
    StaleError,
    UnavailableError,
    is_about_peer,
    require_value,
)
from sealift.events import Sink, discard, unfailing
from sealift.ids import Digest
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.agreement.statements import ENDS
from sealift.release.broker.checkpoints import CheckpointKeeper
from sealift.release.broker.inforce import StatementsInForce
from sealift.release.broker.keyrelease import KeyReleases, bring_into_force
from sealift.release.broker.leases import Asker, KeyLeases, shortest_lease
from sealift.release.broker.messages import (
    BrokerAnswer,
    BrokerRequest,
    EnrolRequest,
    Refusal,
)
from sealift.release.checkpoint import CheckpointRequest, CheckpointStatus
from sealift.release.decision import require_reader, require_same_agreement
from sealift.release.facts import RollbackGate, Sighting
from sealift.release.log.auditlog import AuditLog
from sealift.release.log.entries import Logged, SignedTreeHead
from sealift.release.vault.vault import Vault
from sealift.session.endpoint import VerifiedPeer

if TYPE_CHECKING:  # what arrives is looked at through the records of the core
    from sealift.session.session import Session

MAX_REQUESTS_PER_SESSION: Final = 256


MAX_OPEN: Final = 64


# Writes an enrolment into the log and syncs it, or raises UnavailableError.
RecordEnrolment = Callable[[VerifiedPeer, Enrolment], None]


class Enroller:
    """Enrols hosts for one owner under one agreement.

    Args:
        verified: Equipped; says which hosts, roots and enrollers count.
        signer: The owner's identity.
        record: Logs an enrolment.
        clock: Seconds since 1970.
    """

    def __init__(
        self,
        verified: VerifiedAgreement,
        signer: Signer,
        *,
        record: RecordEnrolment,
        clock: Callable[[], float],
    ) -> None:
        self._verified = verified
        self._signer = signer
        self._record = record
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[bytes, tuple[Enrolment, SecretKey]] = {}

    def begin(self, request: EnrolmentRequest, session: bytes) -> Credential:
        """Challenge a host; one challenge a session.

        Raises:
            EvidenceError: the keys are not what they must be, or of no agreed maker.
            PolicyError: not one of the agreed hosts, or no TPM was agreed on.
        """
        ek, ak = require_pair(request)
        appraiser = self._verified.appraiser()
        tpm = require_references(appraiser.references.tpm, "TPM evidence")
        if self._signer.public_key not in appraiser.references.enrollers:
            raise PolicyError(
                "the agreement does not name this owner as an enroller",
                code="not-an-enroller",
            )
        _, root = verify_endorsement(
            request.certificates,
            tpm,
            collateral=appraiser.collateral,
            at_s=int(appraiser.clock()),
            max_age_s=appraiser.references.collateral_max_age_s,
        )
        if ek.spki_digest not in tpm.endorsement_keys:
            raise PolicyError(
                "the host is not one that the agreement names",
                why=ek.spki_digest.to_text(),
                code="tpm-other-host",
            )
        enrolment = Enrolment(
            attestation_key=ak.name,
            endorsement_key=ek.spki_digest,
            root=root.key,
            at_s=int(self._clock()),
        )
        credential, secret = make_challenge(ek, ak.name)
        with self._lock:
            if len(self._open) >= MAX_OPEN:
                self._open.clear()  # whoever was slow begins again
            self._open[session] = (enrolment, secret)
        return credential

    def finish(
        self, answer: bytes, peer: VerifiedPeer, session: bytes
    ) -> SignedEnrolment:
        """Check the answer, log and sign the enrolment.

        Raises:
            EvidenceError: ``tpm-not-activated``; the challenge is spent either way.
        """
        with self._lock:
            enrolment, secret = self._open.pop(session, (None, None))
        if enrolment is None or secret is None:
            raise EvidenceError(
                "this session has no open enrolment challenge", code="tpm-not-activated"
            )
        try:
            check_answer(secret, answer)
        finally:
            secret.wipe()
        self._record(peer, enrolment)
        return sign_enrolment(enrolment, self._signer)


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
        statements: StatementsInForce | None = None,
    ) -> None:
        self._verified = verified
        self._log = log
        self._monotonic = monotonic
        bring_into_force(verified, identity, vault)
        own = Sighting(identity.name, verified.agreement.number, verified.digest)
        self.gate = RollbackGate(verified.agreement, own)
        self.statements = statements or StatementsInForce(verified, clock=clock)
        self.leases = KeyLeases(
            vault.ledger,
            identity.public_key,
            terms=shortest_lease(verified.agreement.resources_of(identity.name)),
            record=self._record_revocation,
            monotonic=monotonic,
        )
        self._enroller = Enroller(
            verified, identity, record=self._record_enrolment, clock=clock
        )
        self._releases = KeyReleases(
            verified,
            identity,
            vault,
            log,
            statements=self.statements,
            gate=self.gate,
            leases=self.leases,
            clock=clock,
            monotonic=monotonic,
            sink=unfailing(sink),
        )
        self._checkpoints = CheckpointKeeper(
            verified,
            identity,
            store=vault.checkpoints,
            log=log,
            releases=self._releases,
            clock=clock,
        )
        self._served = self._releases.append("agreement")

    def serve(
        self,
        session: Session,
        timeout_s: float | None = None,
        *,
        accepted_at_s: float = 0.0,
    ) -> None:
        """Answer one session until its peer closes it or falls silent."""
        asker = Asker(session, self._monotonic, accepted_at_s)
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
            except MalformedError as error:
                self._refuse_unread(error, session)
                raise
            asked += request.lease is None
            answer = self.answer(request, session, asker)
            asker.answered()
            session.send_message(answer)

    def answer(
        self, request: BrokerRequest, session: Session, asker: Asker
    ) -> BrokerAnswer:
        """Answer one request; a refusal is an answer too."""
        try:
            return self._answer(request, session, asker)
        except SealiftError as error:
            if is_about_peer(error):
                return BrokerAnswer(refusal=Refusal(error.code, str(error)))
            self._releases.tell(
                "broker.failed", rule=error.code, peer=session.peer.name
            )
            line = "the broker cannot answer now; its own log says why"
            return BrokerAnswer(refusal=Refusal(error.code, line))

    def record_refused_handshake(
        self, error: SealiftError, *, role: str = "", name: str = ""
    ) -> None:
        """Log a peer whose handshake was refused before it could ask anything.

        The number per process is limited: strangers must not fill the disk that releases
        need.
        """
        if not isinstance(error, (RefusedError, MalformedError)):
            return
        self._releases.tell("release.refused", rule=error.code, peer=name)
        if self._releases.may_log(None):
            self._record_refused(error, role=role, peer=name[:63])

    def obey_statements(self) -> None:
        """End every lease once a statement, or its time, ended what keys go by.

        Raises:
            SealiftError: why nothing is released now, though leases go on.
        """
        try:
            self._releases.require_in_force()
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
        self._releases.require_in_force()
        self._log.head()

    def open_leases(self) -> int:
        """How many instances hold keys under a lease now."""
        return len(self.leases.open())

    @property
    def verified(self) -> VerifiedAgreement:
        """The agreement that it serves."""
        return self._verified

    def head(self) -> SignedTreeHead:
        """The latest signed head of this broker's log."""
        return self._log.head()

    def _answer(
        self, request: BrokerRequest, session: Session, asker: Asker
    ) -> BrokerAnswer:
        if request.release is not None:
            return BrokerAnswer(release=self._releases.release(request.release, asker))
        if request.rows is not None:
            return BrokerAnswer(visits=self._releases.count_pass(request.rows, asker))
        if request.checkpoint is not None:
            return self._answer_checkpoint(request.checkpoint, asker)
        self.leases.require_good(session.peer.instance)
        require_same_agreement(session.peer, self._verified)
        if request.enrol is not None:
            return self._enrol(request.enrol, session)
        if request.lease is not None:
            return BrokerAnswer(standing=self.leases.answer(request.lease, asker))
        require_reader(session.peer, self._verified)
        if request.statement is not None:
            self.statements.admit(request.statement)
            with suppress(SealiftError):  # it is kept: the watch obeys it as well
                self.obey_statements()
        if request.statements or request.statement is not None:
            return BrokerAnswer(statements=self.statements.known())
        if request.sighting:
            self._releases.require_in_force()  # or we would say that it is the last one here
            return BrokerAnswer(served=self._served)
        if request.consistency is not None:
            wanted = request.consistency
            return BrokerAnswer(
                proof=self._log.consistency(wanted.first, wanted.second)
            )
        return BrokerAnswer(head=self._log.head())

    def _enrol(self, request: EnrolRequest, session: Session) -> BrokerAnswer:
        if request.begin is not None:
            credential = self._enroller.begin(request.begin, session.th2)
            return BrokerAnswer(credential=credential)
        signed = self._enroller.finish(
            require_value(request.answer), session.peer, session.th2
        )
        return BrokerAnswer(enrolment=signed)

    def _answer_checkpoint(
        self, request: CheckpointRequest, asker: Asker
    ) -> BrokerAnswer:
        answered = self._checkpoints.answer(request, asker)
        if request.commit is not None:
            number = str(request.commit.number)
            self._releases.tell("checkpoint.committed", job=request.job, number=number)
        if isinstance(answered, CheckpointStatus):
            return BrokerAnswer(status=answered)
        if isinstance(answered, Logged):
            return BrokerAnswer(logged=answered)
        return BrokerAnswer(share=answered)

    def _refuse_unread(self, error: MalformedError, session: Session) -> None:
        """What is no question may have been one about a key; its session is over."""
        peer = session.peer
        if self._releases.refused(peer, error):
            self._record_refused(
                error,
                role=peer.role.value,
                peer=peer.name,
                instance=peer.instance,
                session=session.th2,
            )
        with suppress(SealiftError):  # it may be over already
            refusal = Refusal(error.code, str(error))
            session.send_message(BrokerAnswer(refusal=refusal))

    def _record_refused(self, error: SealiftError, **peer: object) -> None:
        try:
            self._releases.append("refusal", rule=error.code, **peer)
        except UnavailableError as failure:
            self._releases.tell(
                "broker.failed", rule=failure.code, peer=str(peer["peer"])
            )

    def _record_revocation(self, instance: PublicKey, rule: str, epoch: int) -> None:
        self._releases.tell("lease.revoked", rule=rule, peer=instance.to_text())
        self._releases.append("revocation", instance=instance, rule=rule, epoch=epoch)

    def _record_enrolment(self, peer: VerifiedPeer, enrolment: Enrolment) -> None:
        self._releases.tell("host.enrolled", peer=peer.name)
        self._releases.append(
            "enrolment",
            role=peer.role.value,
            peer=peer.name,
            instance=peer.instance,
            info=Digest.of(encode(enrolment)),
        )
