"""What the orchestrator tells the accelerator about training. No torch here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AcceleratorSettings:
    """What a job sets for the accelerator; the agreement limits all of it.

    Attributes:
        seed: Of orders and random streams.
        batch_rows: Rows of one optimizer step.
        threads: CPU threads.
        meet_s: How long a holder may take to come after its lease was granted.
        brokers_s: How long all brokers together may take to appear.
    """

    seed: int
    batch_rows: int
    threads: int
    meet_s: float
    brokers_s: float = 20.0
