"""Key releases of one owner's broker: decide, seal, count, log and sync, then send.

``KeyReleases.release`` releases keys, ``release/broker/checkpoints.py`` shares of
checkpoints. Both call ``KeyReleases.require``, which collects what this broker knows at
the moment and passes it to ``release/decision.py``. If the log entry cannot be written,
nothing is released (rule H6).
Source: spec/release.md sections Decision and Key release.
"""

from __future__ import annotations

import math
import secrets
import threading
from collections.abc import Callable
from typing import Final

from sealift.attest.policy import AttestationResult
from sealift.crypto.identity import Identity
from sealift.crypto.keys import Label
from sealift.errors import IntegrityError, PolicyError, SealiftError, require_value
from sealift.events import Sink, emit
from sealift.release.accountant import PrivateRound, require_accountant
from sealift.release.agreement import Resource, RunTerms
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.broker.inforce import StatementsInForce
from sealift.release.broker.leases import Asker, KeyLeases
from sealift.release.broker.messages import PassRequest
from sealift.release.decision import decide, require_in_force, require_visits
from sealift.release.facts import (
    Owner,
    ReleaseKind,
    ReleaseQuestion,
    ReleaseState,
    RollbackGate,
)
from sealift.release.grant import (
    CHALLENGE_BYTES,
    KeyRelease,
    ReleaseRequest,
    SealedKey,
    info_digest,
    seal_grant,
)
from sealift.release.log.auditlog import AuditLog
from sealift.release.log.entries import LogEntry, Logged
from sealift.release.vault.ledger import Debit, PrivateDebit
from sealift.release.vault.vault import Vault
from sealift.session.endpoint import VerifiedPeer

# Anybody who reaches the relay can cause refusals, so their log entries are limited: they
# must not fill the disk that releases need.
MAX_UNPROVEN: Final = 1000


class KeyReleases:
    """Lets out what one owner's broker keeps. Threads may share it.

    Args:
        verified: The agreement that everybody signed.
        identity: The owner's; signs.
        vault: The owner's keys; which agreement is in force; uses.
        log: Its audit log.
        statements: What parties say of the agreement.
        gate: What owners said of the last one.
        leases: Of released keys.
        clock: Seconds since 1970.
        monotonic: Seconds that never go back.
        sink: Where events go.
    """

    def __init__(
        self,
        verified: VerifiedAgreement,
        identity: Identity,
        vault: Vault,
        log: AuditLog,
        *,
        statements: StatementsInForce,
        gate: RollbackGate,
        leases: KeyLeases,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        sink: Sink,
    ) -> None:
        self._verified = verified
        self._identity = identity
        self._owner = Owner(identity.name, identity.public_key)
        self._vault = vault
        self._ledger = vault.ledger
        self._log = log
        self._statements = statements
        self._gate = gate
        self._leases = leases
        self._clock = clock
        self._monotonic = monotonic
        self._sink = sink
        self._lock = threading.Lock()
        self._challenges: set[bytes] = set()
        self._unproven = 0

    def release(self, request: ReleaseRequest, asker: Asker) -> KeyRelease:
        """The key that is asked for, sealed to the session; it may leave.

        Raises:
            RefusedError: its ``code`` names the rule that failed; it was logged, unless
                too many without evidence were.
            UnavailableError: if the entry cannot be written: then nothing leaves.
        """
        peer = asker.peer
        kind = (
            ReleaseKind.MODEL_KEY
            if request.purpose == "model"
            else ReleaseKind.DATA_KEY
        )
        asked = ReleaseQuestion(
            kind=kind, peer=peer, resource=request.resource, purpose=request.purpose,
            run=request.run,
        )  # fmt: skip
        try:
            self.require(asked, asker, request.challenge)
            resource = self._verified.resource(request.resource)
            sealed = self._seal(request, asker)
            if kind is ReleaseKind.DATA_KEY:
                self._count_run(require_value(request.run))
            use = self._ledger.debit(  # counted before it leaves, and who gets it
                self._verified.agreement.name,
                resource.name,
                resource.rule.max_uses,
                peer.instance,
            )
            self._lease(peer, resource, asker.judged_after_s)
            info = info_digest(sealed.info)
            logged = self._append_asked("release", request, asker, info=info, use=use)
            self.require_still(peer)
        except SealiftError as error:
            if self.refused(peer, error):
                self._append_asked("refusal", request, asker, rule=error.code)
            raise
        self.tell("release.granted", resource=resource.name, peer=peer.name)
        return KeyRelease(logged.entry, logged.inclusion, logged.head, sealed)

    def count_pass(self, request: PassRequest, asker: Asker) -> int:
        """Count a pass over this owner's rows; it may begin when this has returned.

        One that does not begin yet is decided alike, and not counted.

        Raises:
            RefusedError: its ``code`` names the rule that failed; it was logged.
            UnavailableError: if it cannot be written: then it may not begin.
        """
        peer, owner = asker.peer, self._owner.name
        attempt, budgets = request.attempt, self._verified.agreement.budgets_of(owner)
        if budgets and request.begins and not self._spend(attempt):
            # A question that came before was answered, maybe: a repeated step costs again.
            attempt = secrets.token_bytes(CHALLENGE_BYTES)
        asked = ReleaseQuestion(
            kind=ReleaseKind.PASSES, peer=peer, purpose=request.purpose, run=request.run,
            visits=request.visits, attempt=attempt,
        )  # fmt: skip
        limit = self._verified.agreement.output_rule.max_visits
        try:
            self.require(asked, asker, None)
            if not request.begins:
                return 0
            private = self._private(asked)
            counted = self._ledger.spend(
                self._debit(asked),
                lambda count: require_visits(count, limit, owner),
                private,
            )
        except SealiftError as error:
            if self.refused(peer, error):
                self.append("refusal", rule=error.code, **asker.logged())
            raise
        for each in private:
            spent, budget = self._ledger.spending(each, b"").before, each.budget.epsilon
            self.tell(
                "privacy.spent", resource=each.resource, job=each.job,
                epsilon=f"{spent:.4g}", left=f"{max(0.0, budget - spent):.4g}",
                budget=str(each.budget),
            )  # fmt: skip
        return counted

    def require(
        self, asked: ReleaseQuestion, asker: Asker, challenge: bytes | None
    ) -> None:
        """Return if it may leave now; the challenge is spent then.

        Args:
            asked: By the peer of the session.
            asker: Its session.
            challenge: Of the answer; None where nothing leaves by it.

        Raises:
            RefusedError: see ``decide``.
        """
        fresh = challenge is None or self._spend(challenge)
        try:
            decide(asked, self._state(asked, asker, fresh=fresh))
        except SealiftError:
            if fresh and challenge is not None:
                with self._lock:  # it let nothing go, and its asker may ask again
                    self._challenges.discard(challenge)
            raise

    def require_in_force(self) -> None:
        """A successor, or a statement, may have come while this broker runs.

        Raises:
            PolicyError: ``agreement-vetoed``, ``agreement-cancelled``, ``owner-left``.
            StaleError: ``agreement-superseded``.
        """
        verified, ended = self._statements.judged()
        require_in_force(
            ReleaseState(
                owner=self._owner,
                verified=verified,
                at_s=self._clock(),
                ended=ended,
                revoked="",
                in_force=self._vault.in_force(verified.agreement.name),
            )
        )

    def require_still(self, peer: VerifiedPeer) -> None:
        """Check again after the sync: a revocation or statement may have arrived meanwhile.

        Raises:
            PolicyError, StaleError: see ``require_in_force``, or ``lease-revoked``.
        """
        self.require_in_force()
        self._leases.require_good(peer.instance)

    def refused(self, peer: VerifiedPeer, error: SealiftError) -> bool:
        """Tell of a refusal; whether it is to be logged."""
        self.tell("release.refused", rule=error.code, peer=peer.name)
        return self.may_log(peer.result)

    def may_log(self, result: AttestationResult | None) -> bool:
        """Count one refusal of a peer with this result; whether it is to be logged."""
        with self._lock:
            self._unproven += result is None
            return result is not None or self._unproven <= MAX_UNPROVEN

    def append(self, kind: str, **fields: object) -> Logged:
        """Write an entry into the log and sync it."""
        entry = LogEntry(
            kind=kind,  # type: ignore[arg-type]
            at_s=int(self._clock()),
            agreement=self._verified.digest,
            **fields,  # type: ignore[arg-type]
        )
        return self._log.append(entry)

    def tell(self, kind: str, **fields: str) -> None:
        """Emit an event of this owner's broker."""
        emit(self._sink, kind, owner=self._owner.name, **fields)

    def _state(
        self, asked: ReleaseQuestion, asker: Asker, *, fresh: bool
    ) -> ReleaseState:
        verified, ended = self._statements.judged()
        line, instance, ledger = (
            verified.agreement.name,
            asked.peer.instance,
            self._ledger,
        )
        passes = asked.kind is ReleaseKind.PASSES
        held = passes or asked.kind is ReleaseKind.CHECKPOINT_SHARE
        own = verified.agreement.resources_of(self._owner.name)
        return ReleaseState(
            owner=self._owner,
            verified=verified,
            at_s=self._clock(),
            ended=ended,
            revoked=ledger.revoked(instance),
            in_force=self._vault.in_force(line),
            sightings=self._gate.sightings,
            host=self._leases.host(instance),
            evidence_age_s=self._monotonic() - asker.judged_after_s,
            uses={
                each.name: ledger.uses(line, each.name)
                for each in own
                if each.rule.max_uses and each.name == asked.resource
            },
            held=ledger.held(line, instance) if held else frozenset(),
            fresh=fresh,
            runs=ledger.runs(line) if asked.kind is ReleaseKind.DATA_KEY else None,
            visits=ledger.spent(self._debit(asked)) if passes else math.inf,
            epsilons={
                each.resource: ledger.spending(each, asked.attempt)
                for each in self._private(asked)
            },
        )

    def _debit(self, asked: ReleaseQuestion) -> Debit:
        line = self._verified.agreement.name
        return Debit.of_visits(line, asked.purpose, asked.visits, asked.attempt)

    def _private(self, asked: ReleaseQuestion) -> tuple[PrivateDebit, ...]:
        """What a pass costs of this owner's budgets: by what was signed, never as asked."""
        agreement, run = self._verified.agreement, asked.run
        steps = agreement.training.privacy if agreement.training else None
        trains = asked.kind is ReleaseKind.PASSES and asked.purpose != "heldout"
        if run is None or steps is None or not trains:
            return ()
        return tuple(
            PrivateDebit(
                content=each.content,
                resource=each.name,
                budget=budget,
                job=run.job,
                run=run.digest(agreement.digest),
                cost=PrivateRound(
                    steps.noise, steps.rate(each.rows), steps.steps(each.rows)
                ),
            )
            for each, budget in agreement.budgets_of(self._owner.name)
        )

    def _count_run(self, run: RunTerms) -> None:
        agreement = self._verified.agreement
        limit, digest = agreement.training_rule.runs, run.digest(agreement.digest)
        self._ledger.count_run(agreement.name, digest, limit)

    def _spend(self, challenge: bytes) -> bool:
        with self._lock:
            fresh = challenge not in self._challenges
            self._challenges.add(challenge)
        return fresh

    def _seal(self, request: ReleaseRequest, asker: Asker) -> SealedKey:
        info = request.grant_info(self._verified.digest, self._owner.name, asker.th2)
        data_key = self._vault.fetch(request.resource)
        try:
            sealed, signature = seal_grant(
                data_key,
                info,
                recipient=asker.peer.hpke,
                signer=self._identity,
                label=Label.RELEASE,
            )
        finally:
            data_key.wipe()
        return SealedKey(info, sealed, signature)

    def _lease(
        self, peer: VerifiedPeer, resource: Resource, proven_at_s: float
    ) -> None:
        if resource.lease is not None:
            attester = require_value(peer.result).claims.attester
            self._leases.grant(peer.instance, resource.lease, proven_at_s, attester)

    def _append_asked(
        self, kind: str, request: ReleaseRequest, asker: Asker, **fields: object
    ) -> Logged:
        return self.append(
            kind,
            resource=request.resource[:63],
            purpose=request.purpose,
            epoch=self._ledger.epoch(),
            **asker.logged(),
            **fields,
        )


def bring_into_force(
    verified: VerifiedAgreement, identity: Identity, vault: Vault
) -> None:
    """Begin to serve an agreement, if its owner signed it and its keys are the agreed.

    Raises:
        PolicyError: ``owner-unsigned``, ``owner-left``.
        IntegrityError: ``other-key``, what every release would fail of later.
        StaleError: ``agreement-superseded``, ``agreement-line``.
        UnavailableError: ``extra-missing``: it has a privacy budget that nothing counts.
    """
    if verified.agreement.budgets_of(identity.name):
        require_accountant()
    if verified.require_owner_signed(identity.name).sign != identity.public_key:
        raise PolicyError(
            f"the agreement names another key for {identity.name}",
            fix="Use the identity that signed the agreement",
            code="owner-unsigned",
        )
    held = vault.resources()
    for resource in verified.agreement.resources_of(identity.name):
        if resource.name in held and held[resource.name] != resource.key:
            raise IntegrityError(
                f"the vault's key of {resource.name} is not the agreement's",
                why="the table was sealed again after the agreement was signed",
                fix="Use the vault with which the agreement was made, or sign a successor",
                code="other-key",
            )
    vault.activate(verified)
