"""Read handwritten digits; every owner lacks some of the ten."""

from __future__ import annotations

from typing import Final

from sealift.lab.demo.tasks.digittables import CLASSES_OF, write_digits
from sealift.lab.demo.tasks.task import ACCURACY, Metric, Schedule, Task, Words
from sealift.lab.worlds.folder import OWNERS

ROW_BYTES: Final = 264

DIGITS: Final = Task(
    name="digits",
    bundle="digits",
    write_tables=write_digits,
    metrics=(Metric(ACCURACY, "digits read right"),),
    schedule=Schedule(
        epochs=14,
        batch_rows=16,
        evaluate_every=4,
        rows_per_visit=480,  # a whole part: each visit costs a fresh process
        row_bytes=ROW_BYTES,
    ),
    words=Words(
        rows="handwritten digits",
        result="reads {} of the held-out digits right",
        reaches="reads",
        private_heading="has images of",
        private={
            owner: f"digits {', '.join(map(str, CLASSES_OF[owner]))}"
            for owner in OWNERS
        },
        why_alone_is_less=(
            "Each owner lacks some digits, so what it trains alone cannot know them."
        ),
        real="real handwritten digits in private, disjoint parts",
    ),
    bar_s=25.0,
)
