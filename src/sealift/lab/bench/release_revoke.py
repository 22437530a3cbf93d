"""From the bad act to the last byte that still flowed.

An accelerator's evidence turns into a stranger's; lease, broker and holder's watch are
those of a job. What a booted guest's own bad acts cost: ``release_revocation``.
"""

from __future__ import annotations

import secrets
import statistics
import tempfile
from pathlib import Path
from typing import Final

from sealift.lab.bench.release_broker import HEARTBEAT_S
from sealift.lab.bench.release_cast import ReleaseCast
from sealift.lab.bench.report import Row

_EARLIEST_S: Final = 0.5
_SPREAD_MS: Final = 1000


def measure_loss(repeats: int) -> tuple[Row, float]:
    """The distribution as a row, and the worst of it in seconds."""
    with (
        tempfile.TemporaryDirectory(prefix="loss-") as folder,
        ReleaseCast(Path(folder) / "l", heartbeat_s=HEARTBEAT_S) as cast,
    ):
        spent_s = sorted(_lose_once(cast) for _ in range(repeats))
    row: Row = {
        "what": "from a refused renewal's cause to the last byte, development evidence",
        "heartbeat_s": HEARTBEAT_S,
        "median_s": round(statistics.median(spent_s), 3),
        "worst_s": round(spent_s[-1], 3),
        "repeats": repeats,
    }
    return row, spent_s[-1]


def _lose_once(cast: ReleaseCast) -> float:
    """A fresh instance, rows that flow to it, and a fall at any time of a heartbeat."""
    (client,) = cast.clients
    kept = client.ask("keep")
    host, port = kept["address"]
    after_s = _EARLIEST_S + secrets.randbelow(_SPREAD_MS) / 1000
    client.tell("fall", after_s=after_s)
    cast.broker.ask("give", host=host, port=port, instance=kept["instance"])
    return max(0.0, float(client.hear()["seconds"]))
