"""Tables of real data that packages ship, and how programs write them.

The packages lie in ``.venv/tables`` (``make setup``): their files are read as data, and
none of their code is imported.
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn import datasets

PLACE = Path(sys.prefix) / "tables"
MOST_ROWS = 150
_NUMBER = re.compile(r"-?(?=[0-9.])[0-9]*(\.[0-9]+)?(e-?[0-9]+)?")


@dataclass(frozen=True)
class RealTable:
    """Header and cells, as text; "" where nothing is."""

    header: list[str]
    rows: list[list[str]]


def _of_lists(rows: list[list[str]], name: str) -> RealTable:
    """The first rows whose length is the header's."""
    header = [each.strip() or f"number {place}" for place, each in enumerate(rows[0])]
    whole = [
        [cell.strip() for cell in row] for row in rows[1:] if len(row) == len(header)
    ]
    assert whole, name
    return RealTable(header, whole[:MOST_ROWS])


def _of_text(path: Path) -> RealTable:
    text = path.read_bytes().decode("ascii", "replace").replace("\ufffd", "e")
    text = text.replace(", ", ",")
    read = [[line.split() for line in text.splitlines()]]
    read += [[*csv.reader(io.StringIO(text), delimiter=mark)] for mark in ",;\t"]
    return _of_lists(max(read, key=_whole_cells), path.name)


def _whole_cells(rows: list[list[str]]) -> int:
    """Cells in rows that are as long as the header."""
    return sum(len(row) for row in rows if 1 < len(row) == len(rows[0]))


def _of_json(path: Path) -> RealTable:
    records = json.loads(path.read_text("utf-8"))
    header = [*dict.fromkeys(key for each in records for key in each)]
    rows = [
        ["" if each.get(key) is None else str(each[key]) for key in header]
        for each in records
    ]
    return _of_lists([header, *rows], path.name)


def _of_sklearn(name: str) -> RealTable:
    loaded = getattr(datasets, f"load_{name}")()
    target = np.asarray(loaded.target).reshape(len(loaded.data), -1)
    names = getattr(loaded, "target_names", None)
    header = [*map(str, loaded.feature_names), *("target", "second", "third")]
    rows = []
    for inputs, target_row in zip(loaded.data.tolist(), target.tolist(), strict=True):
        kind = target_row
        if names is not None and len(target_row) == 1 and name != "diabetes":
            kind = [f"kind {names[int(target_row[0])]}"]
        rows.append([*(f"{each:g}" for each in inputs), *map(str, kind)])
    return _of_lists([header[: len(rows[0])], *rows], name)


def _of_texts() -> RealTable:
    """Lines of text, each with the name of the data that it is about."""
    rows = [
        [path.stem, " ".join(line.split())]
        for path in sorted((Path(datasets.__file__).parent / "descr").glob("*.rst"))
        for line in path.read_text("utf-8").splitlines()
        if line.strip().isascii() and line.strip()
    ]
    return _of_lists(
        [["about", "text of a line"], *rows[:: len(rows) // MOST_ROWS]], ""
    )


def found_tables() -> dict[str, Callable[[], RealTable]]:
    """Every table, by package and name, with what reads it."""
    found: dict[str, Callable[[], RealTable]] = {}
    for path in sorted((PLACE / "statsmodels" / "datasets").glob("*/*.csv")):
        found[f"statsmodels {path.stem}"] = lambda path=path: _of_text(path)  # type: ignore[misc]
    for path in sorted((PLACE / "lifelines" / "datasets").glob("*.csv")):
        found[f"lifelines {path.stem}"] = lambda path=path: _of_text(path)  # type: ignore[misc]
    for path in sorted((PLACE / "vega_datasets" / "_data").glob("*.*")):
        read = _of_json if path.suffix == ".json" else _of_text
        found[f"vega {path.stem}"] = lambda path=path, read=read: read(path)  # type: ignore[misc]
    for name in ("iris", "wine", "breast_cancer", "diabetes", "digits", "linnerud"):
        found[f"sklearn {name}"] = lambda name=name: _of_sklearn(name)  # type: ignore[misc]
    found["sklearn's texts"] = _of_texts
    return found


@dataclass(frozen=True)
class Way:
    """How a program writes a table.

    Attributes:
        mark: Between cells.
        ends: Of lines, in turn.
        encoding: Of the file.
        decimal: The decimal mark.
        thousands: Between thousands.
        quoting: ``csv.QUOTE_*``.
        index: The number of the first row, in a column before the others; None without.
        empty: What stands where nothing is.
        letter: What is written for the letter o, in names and texts.
        padded: Whether cells have spaces around them.
        own: What the owner says in table.toml.
    """

    mark: str = ","
    ends: tuple[str, ...] = ("\n",)
    encoding: str = "utf-8"
    decimal: str = "."
    thousands: str = ""
    quoting: int = csv.QUOTE_MINIMAL
    index: int | None = None
    empty: str = ""
    letter: str = "o"
    padded: bool = False
    own: str = ""

    def write(self, path: Path, table: RealTable) -> None:
        """Write the table, and table.toml beside it."""
        lines = [[self._text(each) for each in table.header]]
        lines += [[*map(self._cell, row)] for row in table.rows]
        if self.index is not None:
            lines = [
                ["" if place == 0 else str(place - 1 + self.index), *each]
                for place, each in enumerate(lines)
            ]
        if self.padded:
            lines = [[f" {each} " for each in line] for line in lines]
        text = ""
        for place, line in enumerate(lines):
            buffer = io.StringIO(newline="")
            csv.writer(
                buffer, delimiter=self.mark, lineterminator="", quoting=self.quoting  # type: ignore[arg-type]
            ).writerow(line)  # fmt: skip
            text += buffer.getvalue() + self.ends[place % len(self.ends)]
        path.write_bytes(text.encode(self.encoding))
        own = path.parent / "table.toml"
        own.unlink(missing_ok=True)
        if self.own:
            own.write_text(self.own)

    def _text(self, text: str) -> str:
        return text.replace("o", self.letter)

    def _cell(self, text: str) -> str:
        if not text:
            return self.empty
        if not _NUMBER.fullmatch(text):
            return self._text(text)
        whole, _, part = text.partition(".")
        if self.thousands and whole.lstrip("-")[:1] not in ("", "0"):
            whole = f"{int(whole):,}".replace(",", self.thousands)
        return f"{whole}{self.decimal}{part}" if part else whole


INDEX = 'leave_out = ["column 1"]\n'
GERMAN = 'thousands = "."\ndecimal = ","\n'
WAYS = {
    "Excel": Way(ends=("\r\n",), encoding="utf-8-sig"),
    "German Excel": Way(";", ("\r\n",), "cp1252", ",", letter="ö"),
    "Excel, Unicode text": Way("\t", ("\r\n",), "utf-16", letter="ö"),
    "R": Way(index=1, quoting=csv.QUOTE_ALL, empty="NA", own=INDEX),
    "R, write.csv2": Way(";", index=1, decimal=",", empty="NA", own=INDEX),
    "SAS": Way(ends=("\r\n",), encoding="cp1252", empty="."),
    "pandas": Way(index=0, own=INDEX),
    "UTF-16 without a mark": Way(
        encoding="utf-16-le", letter="ö", own='encoding = "utf-16-le"\n'
    ),
    "Windows-1250": Way(
        ";", encoding="cp1250", letter="ő", own='encoding = "cp1250"\n'
    ),
    "Windows-1251": Way(encoding="cp1251", letter="о", own='encoding = "cp1251"\n'),  # noqa: RUF001
    "everything quoted": Way(quoting=csv.QUOTE_ALL),
    "German thousands": Way(";", ("\r\n",), decimal=",", thousands=".", own=GERMAN),
    "Swiss thousands": Way(
        ";", thousands="'", own='thousands = "\'"\ndecimal = "."\n'
    ),
    "mixed line ends": Way(ends=("\n", "\r\n")),
    "old Mac": Way(";", ("\r",), "cp1252"),
    "bars, padded": Way("|", padded=True),
}  # fmt: skip
PLAIN = Way()
