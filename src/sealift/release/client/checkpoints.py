"""All owners' brokers together, as an accelerator uses them for one job's checkpoints.

Two phases: every broker holds its share before any is asked to let the checkpoint count.
So whenever one of them did, all shares exist; and as long as none did, all shares of the
checkpoint before exist. A crash between any two steps leaves one of these two cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

from sealift.crypto.keys import SecretKey
from sealift.errors import PeerError, PolicyError, SealiftError, UsageError
from sealift.ids import Digest
from sealift.release.checkpoint import (
    CheckpointMark,
    CheckpointStatus,
    find_latest,
    join_key,
    last_number,
    split_key,
)
from sealift.release.client.shares import FINAL_RULES, Shares
from sealift.release.log.entries import SignedTreeHead

Reach = Callable[[str], AbstractContextManager[Shares]]


class CheckpointLedger:
    """What counts of one job's checkpoints.

    Args:
        owners: Whose brokers released a key to this process.
        reach: A fresh session with an owner's broker.
        show: Takes the heads that cover what brokers did for us.
    """

    def __init__(
        self,
        owners: Iterable[str],
        reach: Reach,
        show: Callable[[SignedTreeHead], None],
    ) -> None:
        self._owners = tuple(sorted(owners))
        self._reach = reach
        self._last = 0
        self._mark: CheckpointMark | None = None
        self._behind: set[str] = set()
        self._show = show

    @property
    def next_number(self) -> int:
        """Number of the checkpoint that is recorded next."""
        return self._last + 1

    def may_count(self, sealed: Digest) -> bool:
        """Whether this file is the last one that all brokers hold a share for."""
        return self._mark is not None and self._mark.sealed == sealed

    def claim(self) -> CheckpointMark | None:
        """Take the job over at every broker; the checkpoint to go on from, if any.

        Raises:
            RefusedError: as ``find_latest``, or a broker's refusal.
            PeerError: if a broker that holds a share does not answer.
        """
        statuses = {owner: self._claim(owner) for owner in self._owners}
        latest = find_latest(statuses)
        self._last, self._mark = last_number(statuses), latest
        for owner, status in statuses.items():
            if latest is None and status.committed and not status.finished:
                self._finish(owner)
            elif latest and owner in latest.split and status.committed != latest:
                self._behind.add(owner)
        self._catch_up()
        return latest

    def open_key(self, mark: CheckpointMark) -> SecretKey:
        """The key of the checkpoint that counts, from all brokers that hold a share.

        Raises:
            RefusedError: as ``Shares.fetch``.
            PeerError: if a broker does not answer.
        """
        shares = []
        for owner in mark.split:
            with self._reach(owner) as broker:
                share, head = broker.fetch(mark)
            self._show(head)
            shares.append(share)
        return join_key(shares)

    def record(self, sealed: Digest, key: SecretKey) -> CheckpointMark:
        """Let a sealed file count as the next checkpoint.

        Returns when at least one broker let it count. One that did not is asked again
        before the next checkpoint.

        Args:
            sealed: Digest of the file, which is on the disk.
            key: Its key; not kept.

        Raises:
            PeerError: if a broker does not answer; the checkpoint before counts, or
                this one does, and which of them stands with the brokers.
            PolicyError: if a broker refuses; its ``code`` is in ``FINAL_RULES`` if
                this process cannot go on.
        """
        if not self._owners:
            raise UsageError("no broker released a key, so none keeps a share")
        self._catch_up()
        mark = CheckpointMark(self.next_number, sealed, self._owners)
        for owner, share in split_key(key, self._owners).items():
            with self._reach(owner) as broker:
                broker.deposit(mark, share)
            share.wipe()
        # From here on it may count, whatever answers get lost.
        self._last, self._mark, self._behind = mark.number, mark, set(self._owners)
        failure = self._commit_where_possible(mark)
        if len(self._behind) == len(self._owners) and failure is not None:
            raise failure
        return mark

    def finish(self) -> None:
        """No broker needs to keep anything of this job any more."""
        for owner in self._owners:
            self._finish(owner)
        self._mark, self._behind = None, set()

    def _claim(self, owner: str) -> CheckpointStatus:
        with self._reach(owner) as broker:
            return broker.claim()

    def _finish(self, owner: str) -> None:
        with self._reach(owner) as broker:
            self._show(broker.finish())

    def _commit(self, owner: str, mark: CheckpointMark) -> None:
        with self._reach(owner) as broker:
            self._show(broker.commit(mark))
        self._behind.discard(owner)

    def _catch_up(self) -> None:
        """A broker takes no deposit before the checkpoint before counts there too."""
        for owner in sorted(self._behind):
            assert self._mark is not None, "somebody is behind something"
            self._commit(owner, self._mark)

    def _commit_where_possible(self, mark: CheckpointMark) -> SealiftError | None:
        failure: SealiftError | None = None
        for owner in self._owners:
            try:
                self._commit(owner, mark)
            except (PeerError, PolicyError) as error:
                if error.code in FINAL_RULES:
                    raise
                failure = error
        return failure
