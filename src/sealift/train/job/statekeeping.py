"""Opens a job's checkpoints for an accelerator: folder, brokers and heads together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sealift.errors import UsageError
from sealift.events import Sink
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.client.checkpoints import CheckpointLedger
from sealift.session.endpoint import Endpoint
from sealift.session.relay.client import RelayClient
from sealift.train.checkpoint.checkpoints import Checkpoints, StateFolder
from sealift.train.checkpoint.file import Checkpoint, JobBinding
from sealift.train.checkpoint.progress import JobProgress
from sealift.train.job.brokers import BrokerSessions
from sealift.train.job.keyring import Keyring
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
        sessions = BrokerSessions(
            self.relay,
            self.endpoint,
            self.agreement,
            job=start.job,
            clock=self.clock,
            wait_s=BROKER_WAIT_S,
        )
        kind = _Required if self.required else Checkpoints
        return kind(
            self.folder,
            CheckpointLedger(keyring.owners, sessions.reach, keyring.heads.show),
            binding=JobBinding(
                job=start.job, agreement=self.agreement.digest, settings=settings.shape
            ),
            kind=JobProgress,
            every=settings.run.checkpoint_every,
            patience_s=settings.run.brokers_s,
            sink=self.sink,
        )


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
