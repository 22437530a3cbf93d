"""What the orchestrator tells the accelerator about training. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field

from sealift.codec import encode
from sealift.ids import Digest
from sealift.travel.settings import TravelSettings


@dataclass(frozen=True, slots=True)
class AcceleratorSettings:
    """What a job sets for the accelerator; the agreement limits all of it.

    Attributes:
        seed: Of orders and random streams.
        batch_rows: Rows of one optimizer step.
        threads: CPU threads.
        meet_s: How long a holder may take to come after its lease was granted.
        travel: How the job travels.
        digest_every: Steps between two digests of the state within a slice; 0 is never.
        checkpoint_every: Groups between two checkpoints; 0 is never.
    """

    seed: int
    batch_rows: int
    threads: int
    meet_s: float
    travel: TravelSettings = field(default_factory=TravelSettings)
    digest_every: int = 0
    checkpoint_every: int = 0

    @property
    def shape(self) -> Digest:
        """Digest of what decides which rows are visited when, and the result's bits.

        Made by the accelerator itself: who resumes a job resumes it in its shape.
        """
        travel = self.travel
        plain = {
            "batch_rows": self.batch_rows,
            "buffer_bytes": travel.buffer_bytes,
            "epochs": travel.epochs,
            "evaluate_every": travel.evaluate_every,
            "mixed": travel.mixed,
            "order": travel.order,
            "prepare": travel.prepare,
            "seed": self.seed,
            "threads": self.threads,
        }
        return Digest.of(encode(plain))
