"""Write Python, byte by byte, with a small GPT; every owner has other packages.

The demo's texts: parts of Python's own library in the hands of three owners.

Real text that every machine has: the sources of the running interpreter's standard
library. Each owner has other packages, so other words, names and habits. A row is a
window of consecutive bytes of one file; windows do not overlap.
Guarantees: the same rows for the same Python; no file in two parts, so what is
measured on was written in files that no model was trained on.

What the opened text model writes: one byte after the other, by chance and a seed.

Runs at the model owner's, after the model was opened with its key; the owner also
brought the recipe, so its code runs here as any of its own.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np

from sealift.data.schema.rows import Array
from sealift.demo.folder import OWNERS
from sealift.demo.job import TaskSchedule
from sealift.demo.tasks.task import (
    ACCURACY,
    Metric,
    Sample,
    Task,
    Words,
    write_parts,
)
from sealift.errors import UnavailableError

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


TEXT: Final = Task(
    name="text",
    bundle=Path(__file__).parents[1] / "text",
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
