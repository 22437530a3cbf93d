"""`sealift` whose orchestrator sends roles other settings than those that all parties signed."""

from __future__ import annotations

import sys
from dataclasses import replace

from sealift.cli.main import main
from sealift.cli.roles import orchestrator
from sealift.codec import decode, encode
from sealift.travel.settings import JobSettings
from sealift.travel.visit.messages import StartJob


def start_otherwise(job: str, settings: bytes) -> StartJob:
    """Steps over single rows, which the other ranks would read."""
    signed = decode(JobSettings, settings)
    training = replace(signed.training, batch_rows=1)
    slices = replace(signed.slices, sync="step")
    other = replace(signed, training=training, slices=slices)
    return StartJob(job, encode(other))


if __name__ == "__main__":
    orchestrator.StartJob = start_otherwise  # type: ignore[misc, assignment]
    sys.exit(main())
