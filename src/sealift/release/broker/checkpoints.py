"""A broker's work on checkpoints: decide, log and sync, change the vault, then answer.

The log is written first, so it may be one step ahead of the vault after a crash; the next
request updates the vault. A vault that is further behind was rolled back, and one that is
ahead has lost its log: the broker refuses to work with either (rule H14). The instance
that claimed a job last runs it; earlier instances are refused permanently, so that two
accelerators never write checkpoints of one job.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from sealift.crypto.identity import Identity
from sealift.crypto.keys import Label, SecretKey
from sealift.errors import MalformedError, PolicyError, SealiftError, StaleError
from sealift.ids import Digest
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.broker.keyrelease import KeyReleases
from sealift.release.broker.leases import Asker
from sealift.release.checkpoint import (
    CheckpointMark,
    CheckpointRequest,
    CheckpointStatus,
    Deposit,
    Fetch,
    ShareRelease,
    mark_of,
    rolled_back,
)
from sealift.release.facts import ReleaseKind, ReleaseQuestion
from sealift.release.grant import info_digest, seal_grant
from sealift.release.log.auditlog import AuditLog
from sealift.release.log.entries import (
    CheckpointEntry,
    CheckpointKind,
    Logged,
    read_entry,
)
from sealift.release.vault.checkpoints import CheckpointStore, JobKey

Answered = CheckpointStatus | Logged | ShareRelease


class CheckpointKeeper:
    """Keeps one owner's shares under one agreement.

    Args:
        verified: The agreement that everybody signed.
        identity: The owner's; signs.
        store: The shares in its vault.
        log: Its audit log.
        releases: Asks whether anything may leave.
        clock: Seconds since 1970, for people who read the log.
    """

    def __init__(
        self,
        verified: VerifiedAgreement,
        identity: Identity,
        *,
        store: CheckpointStore,
        log: AuditLog,
        releases: KeyReleases,
        clock: Callable[[], float],
    ) -> None:
        self._verified = verified
        self._identity = identity
        self._store = store
        self._log = log
        self._clock = clock
        self._releases = releases
        self._lock = threading.Lock()
        self._logged = last_logged(log.entries(), verified.digest)

    def answer(self, request: CheckpointRequest, asker: Asker) -> Answered:
        """Answer one request, or log why not.

        Raises:
            PolicyError: ``instance-superseded`` and the rules of the decision.
            StaleError: ``checkpoint-number``, ``checkpoint-rolled-back``.
            UnavailableError: if vault or log cannot be written.
        """
        with self._lock:
            try:
                return self._answer(request, asker)
            except SealiftError as error:
                if self._releases.refused(asker.peer, error):
                    key, mark = JobKey(self._verified.digest, request.job), request.mark
                    self._append(
                        "checkpoint-refusal", key, mark, asker, rule=error.code
                    )
                raise

    def _answer(self, request: CheckpointRequest, asker: Asker) -> Answered:
        asked = ReleaseQuestion(kind=ReleaseKind.CHECKPOINT_SHARE, peer=asker.peer)
        challenge = request.fetch.challenge if request.fetch else None
        self._releases.require(asked, asker, challenge)
        key = JobKey(self._verified.digest, request.job)
        status = self._settle(key)
        if request.claim:
            return self._claim(key, asker)
        self._require_worker(key, asker)
        if request.deposit is not None:
            return self._deposit(key, request.deposit, status)
        if request.commit is not None:
            return self._commit(key, request.commit, status, asker)
        if request.fetch is not None:
            return self._release(key, request.fetch, status, asker)
        logged = self._append("checkpoint-finish", key, status.committed, asker)
        self._store.finish(key)
        return logged

    def _settle(self, key: JobKey) -> CheckpointStatus:
        """Bring the vault up to the log; they part only by a crash or a rollback."""
        entry, status = self._logged.get(key.job), self._store.status(key)
        lost_log = rolled_back(status.last, "the log of this broker")
        if entry is None or status.last > entry.number:
            if status.last:
                raise lost_log
            return status
        lost_vault = rolled_back(entry.number, "the vault of this broker")
        mark, finished = mark_of(entry), entry.kind == "checkpoint-finish"
        if not finished and status.committed == mark and status.finished:
            raise lost_log
        if not finished and status.committed != mark:
            if status.pending != mark:
                raise lost_vault
            self._store.commit(key)
        if finished and not status.finished:
            if status.committed != mark:
                raise lost_vault
            self._store.finish(key)
        return self._store.status(key)

    def _claim(self, key: JobKey, asker: Asker) -> CheckpointStatus:
        instance = asker.peer.instance
        if self._store.was_superseded(key, instance):
            raise _superseded()
        self._store.claim(key, instance)
        return self._store.status(key)

    def _require_worker(self, key: JobKey, asker: Asker) -> None:
        """Only the accelerator that took the job over last may go on with it."""
        if self._store.worker(key) != asker.peer.instance:
            raise _superseded()

    def _deposit(
        self, key: JobKey, deposit: Deposit, status: CheckpointStatus
    ) -> CheckpointStatus:
        mark = deposit.mark
        self._require_split(mark)
        if mark.number <= status.last:
            raise _wrong_number(mark, f"checkpoint {status.last} is already valid")
        self._store.deposit(key, mark, SecretKey(deposit.share))
        return self._store.status(key)

    def _commit(
        self, key: JobKey, mark: CheckpointMark, status: CheckpointStatus, asker: Asker
    ) -> Logged:
        """Log, then let it count; asked again, overwrite what lingered of the one before."""
        counts_on = None if status.finished else status.committed
        if mark not in (counts_on, status.pending):
            raise _wrong_number(mark, "its share was not deposited at this broker")
        logged = self._append("checkpoint", key, mark, asker)
        if status.committed != mark:
            self._store.commit(key)
        else:
            self._store.overwrite()
        return logged

    def _release(
        self, key: JobKey, fetch: Fetch, status: CheckpointStatus, asker: Asker
    ) -> ShareRelease:
        """Seal, log and sync, in this order; what is returned may leave."""
        if fetch.mark != status.committed:
            raise _wrong_number(fetch.mark, f"checkpoint {status.last} is valid")
        info = fetch.grant_info(key.agreement, key.job, self._identity.name, asker.th2)
        share = self._store.fetch(key, fetch.mark)
        sealed, signature = seal_grant(
            share,
            info,
            recipient=asker.peer.hpke,
            signer=self._identity,
            label=Label.CHECKPOINT_SHARE,
        )
        share.wipe()
        logged = self._append(
            "checkpoint-release", key, fetch.mark, asker, info=info_digest(info)
        )
        self._releases.require_still(asker.peer)
        return ShareRelease(info, sealed, signature, logged)

    def _require_split(self, mark: CheckpointMark) -> None:
        holders = self._verified.agreement.holders
        if self._identity.name not in mark.split or not set(mark.split) <= set(holders):
            raise MalformedError(
                "the checkpoint's key is split among other owners",
                why=f"it is split among {', '.join(mark.split)[:80]}; this is {self._identity.name}'s broker",
                code="checkpoint-split",
            )

    def _append(
        self,
        kind: CheckpointKind,
        key: JobKey,
        mark: CheckpointMark | None,
        asker: Asker,
        **fields: Any,
    ) -> Logged:
        entry = CheckpointEntry(
            kind=kind,
            at_s=int(self._clock()),
            agreement=key.agreement,
            job=key.job,
            number=mark.number if mark else 0,
            sealed=mark.sealed if mark else None,
            split=mark.split if mark else (),
            **asker.logged(),
            **fields,
        )
        logged = self._log.append(entry)
        if kind in _DECIDING:
            self._logged[key.job] = entry
        return logged


_DECIDING = ("checkpoint", "checkpoint-finish")


def last_logged(raws: Iterable[bytes], agreement: Digest) -> dict[str, CheckpointEntry]:
    """By job, the last entry that says what counts."""
    last = {}
    for raw in raws:
        if b'"checkpoint' not in raw:  # most entries, and parsing takes time
            continue
        entry = read_entry(raw)
        if not isinstance(entry, CheckpointEntry) or entry.kind not in _DECIDING:
            continue
        if entry.agreement == agreement:
            last[entry.job] = entry
    return last


def _superseded() -> PolicyError:
    return PolicyError(
        "this accelerator no longer runs the job",
        why="a newer accelerator took it over",
        code="instance-superseded",
    )


def _wrong_number(mark: CheckpointMark, why: str) -> StaleError:
    return StaleError(
        f"checkpoint {mark.number} is not the next one at this broker",
        why=why,
        code="checkpoint-number",
    )
