"""Opens a job's checkpoints for an accelerator: folder, brokers and heads together.

A session with an owner's broker lives for one or two requests, so a broker that was
started again in between is no different from one that was not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from sealift.errors import UsageError
from sealift.events import Sink
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.client.checkpoints import CheckpointLedger, Shares
from sealift.session.endpoint import Endpoint
from sealift.session.relay.client import RelayClient
from sealift.train.checkpoint.checkpoints import Checkpoints, JobProgress, StateFolder
from sealift.train.checkpoint.file import Checkpoint, JobBinding
from sealift.train.job.keyring import Keyring
from sealift.travel.peers import meet_broker
from sealift.travel.settings import JobSettings
from sealift.travel.visit.messages import StartJob
from sealift.travel.visit.state import Clock

BROKER_WAIT_S: Final = 2.0  # for one that is being started again


@dataclass(frozen=True, slots=True, kw_only=True)
class StateKeeping:
    """What one accelerator needs to open checkpoints with.

    Attributes:
        folder: Of the job.
        required: Whether a job must not begin from the beginning.
    """

    folder: StateFolder
    required: bool
    relay: RelayClient
    endpoint: Endpoint
    agreement: VerifiedAgreement
    clock: Clock
    sink: Sink

    def open(
        self, start: StartJob, settings: JobSettings, keyring: Keyring
    ) -> Checkpoints[JobProgress]:
        """The checkpoints of the job that was asked for."""
        kind = _Required if self.required else Checkpoints
        return kind(
            self.folder,
            CheckpointLedger(
                keyring.owners, partial(self._reach, start.job), keyring.heads.show
            ),
            binding=JobBinding(
                job=start.job, agreement=self.agreement.digest, settings=settings.shape
            ),
            kind=JobProgress,
            every=settings.run.checkpoint_every,
            patience_s=settings.run.brokers_s,
            sink=self.sink,
        )

    @contextmanager
    def _reach(self, job: str, owner: str) -> Iterator[Shares]:
        """A fresh session with an owner's broker.

        Raises:
            PeerError: if it is not there.
            RefusedError: if it is somebody else.
        """
        with meet_broker(
            self.relay, self.endpoint, self.agreement, owner, wait_s=BROKER_WAIT_S
        ) as session:
            yield Shares(session, self.agreement, owner, job=job, clock=self.clock)


class _Required(Checkpoints[JobProgress]):
    """Of a job that must go on."""

    def restore(self) -> Checkpoint[JobProgress] | None:
        """The checkpoint; raises UsageError ``nothing-to-resume`` without one."""
        found = super().restore()
        if found is None:
            raise UsageError(
                "there is no checkpoint to go on from",
                why="the owners' brokers know of none that counts",
                code="nothing-to-resume",
            )
        return found
