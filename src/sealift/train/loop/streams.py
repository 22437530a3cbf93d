"""Random streams: each belongs to (seed, purpose, step, slice) and to nothing else.

So a run does not depend on how many numbers another slice or another model drew before
it; that is half of what "bit-identical" rests on (DESIGN 5.8). Noise for differential
privacy never comes from here (rule H12).
"""

from __future__ import annotations

import torch

from sealift.crypto.hash import labelled


def stream_seed(seed: int, purpose: str, *parts: int | str) -> int:
    """A 63-bit seed for one stream."""
    fields = [str(part).encode() for part in (seed, purpose, *parts)]
    return int.from_bytes(labelled("sealift random stream", *fields)[:8], "big") >> 1


def enter_stream(seed: int, purpose: str, *parts: int | str) -> None:
    """Seed torch's default generators for what comes next."""
    chosen = stream_seed(seed, purpose, *parts)
    # Not torch.manual_seed: it asks for every kind of device, 0.3 ms on every step.
    torch.default_generator.manual_seed(chosen)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(chosen)
