"""The accelerator's checkpoints of one job: when to seal one, and where to go on.

A checkpoint that a broker could not be reached for is missed; training goes on, and the
one before still counts. A disk that is full ends the run, with the one before intact.
Beside the states of its models a checkpoint keeps how far the job has come.
"""

from __future__ import annotations

import fcntl
import os
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Generic, Self, TypeVar

from sealift.crypto.keys import SecretKey
from sealift.errors import (
    PeerError,
    PolicyError,
    UnavailableError,
    UsageError,
    require_value,
    unreadable,
)
from sealift.events import Sink, discard, emit
from sealift.release.checkpointclient import FINAL_RULES, CheckpointLedger
from sealift.release.files import make_folder
from sealift.train.job.checkpointfile import (
    Checkpoint,
    JobBinding,
    checkpoint_path,
    find_checkpoint,
    numbers_in,
    read_checkpoint,
    write_checkpoint,
)
from sealift.train.loop.held import Content

P = TypeVar("P")
T = TypeVar("T")
PAUSE_S: Final = 0.1
LOCK_S: Final = 5.0  # a former accelerator may still be ending
KEPT: Final = 2


class CheckpointFolder:
    """The folder of one job's checkpoints, held by one process at a time.

    Raises:
        UnavailableError: ``state-in-use``, or if it cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        make_folder(path)
        try:
            self._descriptor = os.open(
                path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            )
        except OSError as error:
            raise unreadable(path, error) from None
        # Once, by whoever is first: a number closed twice is somebody else's file.
        self._let_go = weakref.finalize(self, os.close, self._descriptor)
        deadline = time.monotonic() + LOCK_S
        while not self._lock():
            if time.monotonic() > deadline:
                self._let_go()
                raise UnavailableError(
                    f"{path} is in use",
                    why="another accelerator uses this job's folder",
                    code="state-in-use",
                )
            time.sleep(0.05)

    def prune(self, below: int | None = None) -> None:
        """Remove files of checkpoints below a number, or all of them."""
        for number in numbers_in(self.path):
            if below is None or number < below:
                checkpoint_path(self.path, number).unlink(missing_ok=True)
        for partial in self.path.glob(".checkpoint-*.partial"):
            partial.unlink(missing_ok=True)  # of a process that was killed

    def close(self) -> None:
        """Let go of it. Idempotent."""
        self._let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _lock(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


class Checkpoints(Generic[P]):
    """Seals, records and restores checkpoints of one job.

    Args:
        folder: Where the files are.
        ledger: What counts, at all owners' brokers.
        binding: What every checkpoint belongs to.
        kind: Class of the progress, a record of the codec.
        every: Seal one after so many groups; 0: never.
        patience_s: How long a broker may stay away while the job is taken over.
        required: Whether the job must not begin from the beginning.
        sink: Where events go.
    """

    def __init__(
        self,
        folder: CheckpointFolder,
        ledger: CheckpointLedger,
        *,
        binding: JobBinding,
        kind: type[P],
        every: int,
        patience_s: float = 0.0,
        required: bool = False,
        sink: Sink = discard,
    ) -> None:
        self._folder = folder
        self._ledger = ledger
        self._binding = binding
        self._kind = kind
        self._every = every
        self._patience_s = patience_s
        self._required = required
        self._sink = sink
        self._waiting = 0
        self._latest: tuple[int, SecretKey] | None = None

    def restore(self) -> Checkpoint[P] | None:
        """Take the job over; what to go on from, or None: from the beginning.

        Raises:
            UsageError: ``nothing-to-resume``, if one is required.
            RefusedError: ``checkpoint-stale``, ``checkpoint-damaged``,
                ``checkpoint-other-job``, and those of ``CheckpointLedger.claim``.
            UnavailableError: ``checkpoint-missing``.
            MalformedError: ``checkpoint-version``.
            PeerError: if a broker that holds a share does not answer.
        """
        mark = self._patiently(self._ledger.claim)
        if mark is None and self._required:
            raise UsageError(
                "the job has no checkpoint from which it could be resumed",
                why="the owners' brokers have no record of a valid checkpoint",
                code="nothing-to-resume",
            )
        if mark is None:
            return None
        find_checkpoint(self._folder.path, mark.number, mark.sealed)
        key = self._patiently(lambda: self._ledger.open_key(mark))
        self._latest = mark.number, key
        restored = require_value(self.latest(), "it was opened just now")
        emit(
            self._sink,
            "checkpoint.restored",
            number=restored.number,
            position=restored.position,
        )
        return restored

    def note(
        self,
        position: int,
        progress: Callable[[], P],
        snapshot: Callable[[], Mapping[str, Content]],
        *,
        now: bool = False,
    ) -> None:
        """A group was worked on; seals a checkpoint when it is time for one.

        Args:
            position: First group that is still to be worked on.
            progress: What was counted so far; called only if it is needed, since it
                grows with the job.
            snapshot: The states; the same.
            now: It is time, whatever ``every`` says.

        Raises:
            UnavailableError: if the file cannot be written.
            PolicyError: if this process may not go on with the job.
        """
        self._waiting += 1
        if not now and (not self._every or self._waiting < self._every):
            return
        self._waiting = 0
        number = self._ledger.next_number
        try:
            self._seal(Checkpoint(number, position, progress(), snapshot()))
        except (PeerError, PolicyError) as error:
            if error.code in FINAL_RULES:
                raise
            emit(self._sink, "checkpoint.missed", number=number, line=str(error))

    def latest(self) -> Checkpoint[P] | None:
        """The last checkpoint of this process, opened again from its file.

        Raises:
            IntegrityError: ``checkpoint-damaged``.
            UnavailableError: if the file cannot be read.
        """
        if self._latest is None:
            return None
        number, key = self._latest
        path = checkpoint_path(self._folder.path, number)
        return read_checkpoint(path, self._kind, self._binding, number, key)

    @property
    def counted(self) -> int:
        """Number of the last one of this job that counts; 0 for none."""
        return self._latest[0] if self._latest else 0

    def keep(self) -> None:
        """The result is where it belongs; the last checkpoint stays for a later run."""
        if self.counted:
            emit(self._sink, "checkpoint.stays", number=self.counted)
            return
        why = "no checkpoint counts, so no later run can continue from this one"
        emit(self._sink, "checkpoint.missed", number=0, line=why)

    def finish(self) -> None:
        """The result is where it belongs: nobody needs a checkpoint any more.

        A broker that is away keeps its share until the job is started again.
        """
        try:
            self._ledger.finish()
        except (PeerError, PolicyError) as error:
            emit(self._sink, "checkpoint.kept", line=str(error))
            return
        self._folder.prune()

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Ask again while a broker that went away may be coming back."""
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                return ask()
            except PeerError:
                if time.monotonic() + PAUSE_S >= deadline:
                    raise
            time.sleep(PAUSE_S)

    def _seal(self, checkpoint: Checkpoint[P]) -> None:
        key, began_s = SecretKey.generate(), time.monotonic()
        sealed = write_checkpoint(self._folder.path, checkpoint, self._binding, key)
        written_s = time.monotonic()
        try:
            self._ledger.record(sealed, key)
        finally:
            if self._ledger.may_count(sealed):
                self._latest = checkpoint.number, key
        self._folder.prune(checkpoint.number - KEPT + 1)
        path = checkpoint_path(self._folder.path, checkpoint.number)
        emit(
            self._sink,
            "checkpoint.sealed",
            number=checkpoint.number,
            position=checkpoint.position,
            sealed_bytes=path.stat().st_size,
            seal_s=written_s - began_s,
            record_s=time.monotonic() - written_s,
        )
