"""Read handwritten digits; every owner lacks some of the ten.

The demo's tables: handwritten digits in the hands of three owners.

scikit-learn's copy of the UCI test set: 1,797 images of 8x8 pixels, 0 to 16, in the
order in which 13 people wrote them. Each owner lacks some classes, and where several
owners have a class, each has another stretch of that order, so they have images by
different writers: the parts are private, disjoint and differ as real ones would.
Guarantees: the same parts on every machine; no image in two parts; the held-out parts
together cover all ten classes.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np

from sealift.data.schema.rows import Array
from sealift.demo.folder import OWNERS
from sealift.demo.job import TaskSchedule
from sealift.demo.tasks.task import (
    ACCURACY,
    Metric,
    Task,
    Words,
    write_parts,
)
from sealift.errors import UnavailableError

CLASSES_OF: Final[dict[str, tuple[int, ...]]] = {
    "north": (0, 1, 2, 3, 4, 5),
    "east": (3, 4, 5, 6, 7),
    "south": (0, 1, 7, 8, 9),
}
HELDOUT_EVERY: Final = 4  # every fourth image of a class is kept for measuring

SCHEMA_TOML: Final = """\
description = "Handwritten digits, 8x8 grey pixels, and which digit it is"

[[fields]]
name = "pixels"
dtype = "float32"
shape = [64]
min = 0.0
max = 16.0
description = "row by row from the top left, 16 is ink"

[[fields]]
name = "label"
dtype = "int64"
classes = 10
"""


@dataclass(frozen=True)
class DigitsPart:
    """One owner's part: ``pixels`` is float32 (rows, 64), ``label`` is int64 (rows,)."""

    owner: str
    part: str  # "train" or "heldout"
    pixels: Array
    label: Array
    images: Array  # positions in scikit-learn's set, int64 (rows,)


def digits_parts() -> tuple[DigitsPart, ...]:
    """Every owner's train and held-out part.

    Raises:
        UnavailableError: without scikit-learn.
    """
    pixels, label = load_images()
    parts = []
    for owner in CLASSES_OF:
        owned = _images_of(owner, label)
        heldout = np.concatenate([images[::HELDOUT_EVERY] for images in owned])
        train = np.setdiff1d(np.concatenate(owned), heldout)
        for part, images in (("train", train), ("heldout", np.sort(heldout))):
            parts.append(DigitsPart(owner, part, pixels[images], label[images], images))
    return tuple(parts)


def write_digits(folder: Path) -> None:
    """Write the parts as their owners would have them.

    Raises:
        UnavailableError: without scikit-learn, or if the disk refuses.
    """
    parts = [
        (each.owner, each.part, {"pixels": each.pixels, "label": each.label})
        for each in digits_parts()
    ]
    write_parts(folder, SCHEMA_TOML, parts)


def load_images() -> tuple[Array, Array]:
    """Pixels from 0 to 16, (images, 64), and labels: scikit-learn's digits.

    Raises:
        UnavailableError: without scikit-learn.
    """
    # Its file alone: to import scikit-learn takes as long as all the rest.
    found = find_spec("sklearn")
    path = Path(found.origin if found and found.origin else "").parent / _DIGITS
    try:
        with gzip.open(path) as lines:
            rows = np.loadtxt(lines, delimiter=",", dtype=np.float32)
    except OSError as error:
        raise UnavailableError(
            "the demo's digits need scikit-learn",
            why=error,
            fix="In Sealift's folder, run: pip install '.[demo]'",
            code="extra-missing",
        ) from error
    return rows[:, :-1], rows[:, -1].astype(np.int64)


def _images_of(owner: str, label: Array) -> list[Array]:
    """Per class, this owner's stretch of the class's images."""
    stretches = []
    for digit in CLASSES_OF[owner]:
        owners = [name for name, digits in CLASSES_OF.items() if digit in digits]
        images = np.flatnonzero(label == digit)
        stretches.append(np.array_split(images, len(owners))[owners.index(owner)])
    return stretches


_DIGITS: Final = "datasets/data/digits.csv.gz"
ROW_BYTES: Final = 264

DIGITS: Final = Task(
    name="digits",
    bundle=Path(__file__).parents[1] / "digits",
    write_tables=write_digits,
    metrics=(Metric(ACCURACY, "digits read correctly"),),
    schedule=TaskSchedule(
        epochs=8,
        rounds=16,  # who averages learns slower than who visits
        batch_rows=32,
        evaluate_every=4,
        rows_per_visit=480,  # a whole part: each visit costs a fresh process
        row_bytes=ROW_BYTES,
    ),
    outsourced=TaskSchedule(
        epochs=6,
        batch_rows=32,  # a step takes eight rounds with every server
        evaluate_every=3,
        rows_per_visit=160,  # owners in quicker turns: with fewer steps, more is forgotten
        row_bytes=ROW_BYTES,
    ),
    words=Words(
        rows="handwritten digits",
        result="reads {} of the held-out digits correctly",
        reaches="reads",
        private_heading="has images of",
        private={
            owner: f"digits {', '.join(map(str, CLASSES_OF[owner]))}"
            for owner in OWNERS
        },
        why_alone_is_less=(
            "No owner has all digits, so a model that it trains alone does not know "
            "the others."
        ),
        real="real handwritten digits in private, disjoint parts",
    ),
    bar_s=15.0,
)
