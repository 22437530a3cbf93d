"""What the demo's parties learn together: handwritten digits, or Python's source text.

Everything that differs between tasks stands in one frozen ``ShownTask``; parties, screen,
summary and report read it and ask nothing about its name.
"""

from __future__ import annotations

import gzip
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from sealift.data.schema.rows import Array
from sealift.demo.folder import OWNERS
from sealift.demo.job import DemoTask, TaskSchedule
from sealift.errors import UnavailableError

ACCURACY: Final = "accuracy"  # every task measures it


@dataclass(frozen=True, slots=True)
class Metric:
    """A number that the recipe's ``evaluate`` gives, and how it is told.

    Attributes:
        name: As in the agreement's output rule.
        title: What it is, such as ``digits read correctly``.
        unit: What stands behind the number; ``%`` for a share from 0 to 1.
        lower_is_better: Which way is better.
    """

    name: str
    title: str
    unit: str = "%"
    lower_is_better: bool = False

    def say(self, value: float) -> str:
        """The number for people: ``96.7%``, ``2.47 bits``."""
        return f"{value:.1%}" if self.unit == "%" else f"{value:.2f} {self.unit}"

    def brief(self, value: float) -> str:
        """The number where its unit stands in the heading: ``96.7%``, ``2.47``."""
        return f"{value:.1%}" if self.unit == "%" else f"{value:.2f}"

    def tick(self, value: float) -> str:
        """The number on an axis: ``80%``, ``2.4``."""
        return f"{value:.0%}" if self.unit == "%" else f"{value:g}"

    def full_scale(self, values: Sequence[float]) -> float:
        """Where a bar is full: 100 % for shares, else the largest of the values."""
        return 1.0 if self.unit == "%" else max(values)


@dataclass(frozen=True, slots=True)
class Words:
    """What people read about a task.

    Attributes:
        rows: What a row is, plural: ``handwritten digits``.
        result: What a model does, with a place for its headline.
        reaches: The verb for what an owner alone does.
        private: What each owner has, by owner.
        private_heading: What ``private`` tells, as a heading.
        why_alone_is_less: One sentence.
        real: What is real about the data, for the report's list.
    """

    rows: str
    result: str
    reaches: str
    private_heading: str
    private: Mapping[str, str]
    why_alone_is_less: str
    real: str


@dataclass(frozen=True, slots=True)
class Sample:
    """Something that the opened model made.

    Attributes:
        title: What it shows.
        begun: What it was given.
        made: What it made of it.
    """

    title: str
    begun: str
    made: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTask(DemoTask):
    """Work whose results people read.

    Attributes:
        name: As on the command line, too.
        metrics: What leaves, besides the loss; the first one is the headline.
        make_sample: From a bundle's folder and the opened model's file; None if the
            task has nothing to show.
        bar_s: What the whole demo should take at most on two cores.
    """

    metrics: tuple[Metric, ...]
    words: Words
    bar_s: float
    make_sample: Callable[[Path, Path], Sample] | None = None

    @property
    def headline(self) -> Metric:
        """The number that says who is better."""
        return self.metrics[0]

    @property
    def metric_names(self) -> tuple[str, ...]:
        """What the output rule lets out."""
        return ("loss", *(metric.name for metric in self.metrics))


def write_parts(
    folder: Path, schema: str, parts: Iterable[tuple[str, str, Mapping[str, Any]]]
) -> None:
    """Write tables as their owners would have them, each in a folder of its own.

    Args:
        folder: Gets ``OWNER/train.npz``, ``OWNER/heldout.npz``, ``OWNER/schema.toml``.
        schema: Of all of them, as TOML.
        parts: Owner, part and columns of each.

    Raises:
        UnavailableError: if the disk refuses.
    """
    try:
        for owner, part, columns in parts:
            home = folder / owner
            home.mkdir(parents=True, exist_ok=True)
            (home / "schema.toml").write_text(schema, encoding="utf-8")
            np.savez(home / f"{part}.npz", **columns)
    except OSError as error:
        raise UnavailableError(
            f"it is not possible to write under {folder}", why=error, code="disk"
        ) from error


PACKAGES_OF: Final[dict[str, tuple[str, ...]]] = {
    "north": ("asyncio", "concurrent", "multiprocessing", "queue.py", "threading.py"),
    "east": (
        "email",
        "html",
        "http",
        "imaplib.py",
        "mailbox.py",
        "smtplib.py",
        "urllib",
    ),
    "south": ("json", "logging", "unittest", "xml"),
}
WINDOW: Final = 64  # bytes of a row
ROWS_OF: Final = {"train": 768, "heldout": 160}
HELDOUT_EVERY: Final = 4  # every fourth file is kept for measuring
NOT_READ: Final = frozenset({"test", "tests", "__pycache__"})

SCHEMA_TOML: Final = f"""\
description = "Windows of bytes from the sources of Python's standard library"

[[fields]]
name = "text"
dtype = "uint8"
shape = [{WINDOW}]
description = "consecutive bytes of one file"
"""

Part = Literal["train", "heldout"]


@dataclass(frozen=True)
class SourcePart:
    """One owner's part: ``text`` is uint8 (rows, WINDOW), ``files`` where it is from."""

    owner: str
    part: Part
    text: Array
    files: tuple[str, ...]


def source_parts(library: Path | None = None) -> tuple[SourcePart, ...]:
    """Every owner's train and held-out part.

    Args:
        library: Folder of the standard library; the running interpreter's by default.

    Raises:
        UnavailableError: if the sources are not there, or are too few.
    """
    folder = library or Path(sysconfig.get_path("stdlib"))
    parts = []
    for owner in PACKAGES_OF:
        files = _files_of(owner, folder)
        heldout = files[1::HELDOUT_EVERY]
        train = [path for path in files if path not in heldout]
        parts.append(_part(owner, "train", train, folder))
        parts.append(_part(owner, "heldout", heldout, folder))
    return tuple(parts)


def write_sources(folder: Path) -> None:
    """Write the parts as their owners would have them.

    Raises:
        UnavailableError: if the sources are not there, or the disk refuses.
    """
    parts = [(each.owner, each.part, {"text": each.text}) for each in source_parts()]
    write_parts(folder, SCHEMA_TOML, parts)


def _files_of(owner: str, folder: Path) -> list[Path]:
    return [path for name in PACKAGES_OF[owner] for path in _sources(folder / name)]


def _sources(place: Path) -> Iterator[Path]:
    """One file, or those of a package, in an order that depends on names alone."""
    found = [place] if place.suffix == ".py" else sorted(place.rglob("*.py"))
    for path in found:
        if path.is_file() and not NOT_READ.intersection(path.parts[-3:-1]):
            yield path


def _part(owner: str, part: Part, files: list[Path], folder: Path) -> SourcePart:
    windows = [_windows(path) for path in files]
    rows = np.concatenate([np.empty((0, WINDOW), np.uint8), *windows])
    wanted = ROWS_OF[part]
    if len(rows) < wanted:
        raise _missing(
            f"{folder} has {len(rows)} rows for {owner}; {wanted} are needed"
        )
    # Taken evenly, so that every file that is long enough is in it.
    taken = np.linspace(0, len(rows) - 1, wanted).astype(np.int64)
    names = tuple(path.relative_to(folder).as_posix() for path in files)
    return SourcePart(owner, part, rows[taken], names)


def _windows(path: Path) -> Array:
    try:
        raw = np.frombuffer(path.read_bytes(), np.uint8)
    except OSError as error:
        raise _missing(f"{path.name}: {error.strerror}") from error
    count = len(raw) // WINDOW
    return raw[: count * WINDOW].reshape(count, WINDOW)


def _missing(why: str) -> UnavailableError:
    return UnavailableError(
        "the demo's texts are the sources of Python's standard library",
        why=why,
        code="sources-missing",
    )


BEGUN: Final = '    """Return the '
LENGTH: Final = 300  # bytes
TEMPERATURE: Final = 0.8  # below 1: likelier bytes more often than the model says
SEED: Final = 7


def _write_on(bundle: Path, model_file: Path) -> Sample:
    """Let the model write on after a first line.

    Args:
        bundle: Folder of the recipe.
        model_file: The opened model, as safetensors.
    """
    import torch
    from safetensors.torch import load_file

    from sealift.train.sandboxed.recipe import Recipe

    recipe = Recipe({"recipe.py": (bundle / "recipe.py").read_bytes()}, "recipe.py")
    model = recipe.build()
    model.load_state_dict(load_file(model_file))
    model.eval()
    window = len(model.get_parameter("place.weight"))
    chance = torch.Generator().manual_seed(SEED)
    text = list(BEGUN.encode())
    with torch.no_grad():
        for _ in range(LENGTH):
            logits = model(torch.tensor([text[-window:]]))[0, -1] / TEMPERATURE
            likely = torch.softmax(logits, dim=0)
            text.append(int(torch.multinomial(likely, 1, generator=chance)))
    made = bytes(text).decode("utf-8", "replace")[len(BEGUN) :]
    return Sample("What the joint model writes", BEGUN, made.rstrip())


TEXT: Final = ShownTask(
    name="text",
    bundle=Path(__file__).parent / "text",
    write_tables=write_sources,
    metrics=(
        Metric("bits_per_byte", "bits per byte", "bits", lower_is_better=True),
        Metric(ACCURACY, "next bytes predicted"),
    ),
    schedule=TaskSchedule(
        epochs=4,
        batch_rows=16,
        evaluate_every=1,
        rows_per_visit=384,
        row_bytes=WINDOW,
    ),
    words=Words(
        rows="windows of Python source",
        result="needs {} for each byte of files that no model was trained on",
        reaches="needs",
        private_heading="has files of",
        private={
            owner: ", ".join(name.removesuffix(".py") for name in PACKAGES_OF[owner])
            for owner in OWNERS
        },
        why_alone_is_less=(
            "Each owner has other packages of Python's library. A model that it "
            "trains alone sees a third of the rows and fewer words."
        ),
        real="real text: sources of this machine's Python, other packages for each owner",
    ),
    bar_s=60.0,
    make_sample=_write_on,
)


CLASSES_OF: Final[dict[str, tuple[int, ...]]] = {
    "north": (0, 1, 2, 3, 4, 5),
    "east": (3, 4, 5, 6, 7),
    "south": (0, 1, 7, 8, 9),
}
EVERY_HELD_OUT_DIGIT: Final = 4  # every fourth image of a class is kept for measuring

DIGITS_SCHEMA: Final = """\
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
        heldout = np.concatenate([images[::EVERY_HELD_OUT_DIGIT] for images in owned])
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
    write_parts(folder, DIGITS_SCHEMA, parts)


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

DIGITS: Final = ShownTask(
    name="digits",
    bundle=Path(__file__).parent / "digits",
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

TASKS: Final[dict[str, ShownTask]] = {task.name: task for task in (DIGITS, TEXT)}
