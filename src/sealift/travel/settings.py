"""How a job travels, as its ``job.toml`` asks; the agreement limits all of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Order = Literal["round-robin", "by-size"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TravelSettings:
    """How a job travels.

    Attributes:
        epochs: Rounds over all training rows.
        order: In which order holders are visited.
        buffer_bytes: Largest cargo of one visit; 0 until the accelerator has chosen.
        lease_s: Seconds that a holder has for its cargo.
        work_s: Longest time that one group's training may take.
        gather_s: How long to wait for all roles at the start.
        brokers_s: How long the accelerator waits for all brokers together.
        on_missing: Skip a holder that is missing or fails, or wait for it.
        wait_s: How long to wait for it, with ``wait``.
        attempts: Most visits to one holder for one cargo, with ``wait``; the pauses
            between them take up to ``wait_s`` together.
        evaluate_every: Evaluate after every so many epochs; 0 means at the end.
        buffers: Most groups of visits that are in the accelerator at one time.
        mixed: Draw batches across several holders' rows.
        prepare: Make one pass of sums before training.
        rejoin_s: How long to wait for an accelerator that was lost; 0 ends the job.
    """

    epochs: int = 1
    order: Order = "round-robin"
    buffer_bytes: int = 0
    lease_s: float = 60.0
    work_s: float = 3600.0
    gather_s: float = 120.0
    brokers_s: float = 20.0
    on_missing: Literal["skip", "wait"] = "skip"
    wait_s: float = 60.0
    attempts: int = 5
    evaluate_every: int = 0
    buffers: Literal[1, 2] = 1
    mixed: bool = False
    prepare: bool = False
    rejoin_s: float = 0.0

    def evaluates(self, epoch: int) -> bool:
        """Whether held-out rows are visited after this epoch; always after the last."""
        every = self.evaluate_every
        return epoch == self.epochs - 1 or (every > 0 and (epoch + 1) % every == 0)
