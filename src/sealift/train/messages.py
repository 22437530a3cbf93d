"""What the orchestrator tells the accelerator about training. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from sealift.ids import DIGEST_BYTES, Digest

UNKNOWN_SHAPE: Final = Digest(bytes(DIGEST_BYTES))


@dataclass(frozen=True, slots=True)
class AcceleratorSettings:
    """What a job sets for the accelerator; the agreement limits all of it.

    Attributes:
        seed: Of orders and random streams.
        batch_rows: Rows of one optimizer step.
        threads: CPU threads.
        meet_s: How long a holder may take to come after its lease was granted.
        brokers_s: How long all brokers together may take to appear.
        work_s: How long loaded cargo may wait to be worked on.
        buffers: Most groups of visits in the accelerator at one time.
        mixed: Whether batches are drawn across several owners' rows.
        prepare: Whether sums are made before the model is built.
        buffer_bytes: Largest cargo of one visit; 0 to choose.
        digest_every: Steps between two digests of the state within a slice; 0 is never.
        checkpoint_every: Groups between two checkpoints; 0 is never.
        shape: Digest of everything that shapes the bits of the result.
    """

    seed: int
    batch_rows: int
    threads: int
    meet_s: float
    brokers_s: float = 20.0
    work_s: float = 3600.0
    buffers: Literal[1, 2] = 1
    mixed: bool = False
    prepare: bool = False
    buffer_bytes: int = 0
    digest_every: int = 0
    checkpoint_every: int = 0
    shape: Digest = UNKNOWN_SHAPE
