"""A task of the demo: whose tables, which recipe, which job, which words.

Everything that differs between tasks stands in one frozen ``Task``; world, screen,
summary and report read it and ask nothing about its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from sealift.demo.job import DemoTask
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
class Task(DemoTask):
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
