"""Three hospitals' tables as their offices write them, and what they say of them."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Final

import numpy as np

HEADER: Final = (
    "patient_id", "age", "sex", "smoker", "admitted", "creatinine", "readmitted",
)  # fmt: skip
GERMAN: Final = (
    "Fall-Nr.", "Alter", "sex", "smoker", "admitted", "Kreatinin", "readmitted",
)  # fmt: skip
ISO: Final = "%Y-%m-%d"
SMOKERS: Final = {"never": -1.0, "former": 0.0, "current": 1.0}
# What an owner writes once the first comparison has told it what does not fit.
OWN_TABLE: Final = {
    "north": 'leave_out = ["Fall-Nr."]\n[columns]\nage = "Alter"\n'
    'creatinine = "Kreatinin"\n[dates]\nadmitted = "%d.%m.%Y"\n',
    "east": '[synonyms.sex]\n"femlae" = "female"\n',
}


@dataclass(frozen=True)
class Style:
    """How one office writes a table."""

    header: tuple[str, ...] = HEADER
    delimiter: str = ","
    decimal: str = "."
    dates: str = ISO
    misspelt: int = -1  # the row whose sex is not spelt as the others'


STYLES: Final = {
    "north": Style(GERMAN, ";", ",", "%d.%m.%Y"),
    "east": Style(misspelt=20),
    "south": Style(delimiter=";", decimal=","),
}


def write_table(
    path: Path, style: Style, rows: int, *, seed: int, labels: bool = True
) -> None:
    """Rows of patients, of whom some have no value of creatinine."""
    with path.open("w", newline="") as file:
        lines = csv.writer(file, delimiter=style.delimiter)
        columns = len(HEADER) if labels else len(HEADER) - 1
        lines.writerow(style.header[:columns])
        for row, cells in enumerate(_patients(rows, style, seed)):
            if row == style.misspelt:
                cells[2] = "femlae"
            lines.writerow(cells[:columns])


def _patients(rows: int, style: Style, seed: int) -> Iterator[list[str]]:
    chance = np.random.default_rng(seed)
    for row in range(rows):
        age, level = chance.normal(60, 12), chance.normal(1.1, 0.3)
        smoker = str(chance.choice([*SMOKERS]))
        day = date(2023, 1, 1) + timedelta(days=int(chance.integers(700)))
        risk = (age - 60) / 12 + (level - 1.1) / 0.3 + SMOKERS[smoker]
        numbers = f"{age:.1f}", "" if row % 17 == 5 else f"{level:.2f}"
        said_age, said_level = (x.replace(".", style.decimal) for x in numbers)
        readmitted = str(int(risk + chance.normal() > 0))
        yield [
            f"P-{10_000 + row}", said_age, str(chance.choice(["male", "female"])), smoker,
            day.strftime(style.dates), said_level, readmitted,
        ]  # fmt: skip
