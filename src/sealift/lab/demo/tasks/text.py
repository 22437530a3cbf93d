"""Write Python, byte by byte, with a small GPT; every owner has other packages."""

from __future__ import annotations

from typing import Final

from sealift.lab.demo.tasks.task import ACCURACY, Metric, Schedule, Task, Words
from sealift.lab.demo.tasks.texttables import PACKAGES_OF, WINDOW, write_sources
from sealift.lab.demo.tasks.writing import write_on
from sealift.lab.worlds.folder import OWNERS

TEXT: Final = Task(
    name="text",
    bundle="text",
    write_tables=write_sources,
    metrics=(
        Metric("bits_per_byte", "bits per byte", "bits", lower_is_better=True),
        Metric(ACCURACY, "next bytes guessed right"),
    ),
    schedule=Schedule(
        epochs=4,
        batch_rows=4,
        evaluate_every=1,
        rows_per_visit=384,
        row_bytes=WINDOW,
    ),
    words=Words(
        rows="windows of Python source",
        result="needs {} for each byte of files that nobody trained on",
        reaches="needs",
        private_heading="has files of",
        private={
            owner: ", ".join(name.removesuffix(".py") for name in PACKAGES_OF[owner])
            for owner in OWNERS
        },
        why_alone_is_less=(
            "Each owner has other packages of Python's library, so what it trains alone "
            "knows fewer words and habits, and sees a third of the rows."
        ),
        real="real text: sources of this machine's Python, other packages for each owner",
    ),
    bar_s=60.0,
    make_sample=write_on,
)
