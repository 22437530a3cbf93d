"""Tables of real data, as many programs write them: drafted, sealed, read back, learned from."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import datasets

from sealift.crypto.keys import SecretKey
from sealift.data import SealedDataLoader, SealedDataset
from sealift.data.schema.owntable import own_table_of
from sealift.data.sealing import seal_table
from sealift.data.sources.source import SourceOptions
from sealift.data.sources.table import check_tables, draft_schema

pytestmark = pytest.mark.long
Rows = list[list[str]]


@dataclass
class Table:
    """What is written out: names, numbers, a class for each row; the last column is text."""

    names: list[str]
    numbers: np.ndarray
    classes: list[str]


def numbers_of(name: str) -> Table:
    loaded = getattr(datasets, f"load_{name}")()
    names = [str(each) for each in getattr(loaded, "feature_names", range(1))]
    target = np.asarray(loaded.target)
    if target.ndim > 1 or len(set(target.tolist())) > 20:
        target = (target.reshape(len(target), -1)[:, 0] > np.median(target)).astype(int)
    kinds = [f"Klasse {'äöüßé'[int(each) % 5]}{int(each)}" for each in target]
    return Table(names, np.asarray(loaded.data, dtype=np.float64), kinds)


def numbers_with_names() -> Table:
    random = np.random.default_rng(0)
    names = ["Alter (Jahre)", "Größe [cm]", "Mean 0", "mean_0", "2nd %", "x" * 70]
    return Table(names, random.normal(size=(200, 6)) * 1000, ["ja", "nein"] * 100)


TABLES: dict[str, Callable[[], Table]] = {
    name: (lambda name=name: numbers_of(name))  # type: ignore[misc]
    for name in ("iris", "wine", "breast_cancer", "diabetes", "digits", "linnerud")
} | {"names": numbers_with_names}


@dataclass
class Way:
    """How a program writes.

    Attributes:
        mark: Between cells.
        end: Of a line.
        encoding: Of the file.
        decimal: The decimal mark.
        thousands: Between thousands.
        unit: Behind every number.
        quoted: Whether all texts are quoted.
        index: Whether the first column counts rows.
        own: What its owner says in table.toml.
    """

    mark: str = ","
    end: str = "\n"
    encoding: str = "utf-8"
    decimal: str = "."
    thousands: str = ""
    unit: str = ""
    quoted: bool = False
    index: bool = False
    own: str = ""

    def number(self, value: float) -> str:
        text = f"{value:,.6f}" if self.thousands else f"{value:.6f}"
        text = text.replace(",", "t").replace(".", self.decimal)
        return text.replace("t", self.thousands) + self.unit

    def write(self, path: Path, table: Table) -> None:
        text = io.StringIO(newline="")
        quoting = csv.QUOTE_NONNUMERIC if self.quoted else csv.QUOTE_MINIMAL
        writer = csv.writer(
            text, delimiter=self.mark, lineterminator=self.end, quoting=quoting
        )
        head = [*table.names, "Klasse"]
        writer.writerow(["", *head] if self.index else head)
        for place, (row, kind) in enumerate(
            zip(table.numbers.tolist(), table.classes, strict=True)
        ):
            cells = [*map(self.number, row), kind]
            writer.writerow([str(place), *cells] if self.index else cells)
        path.write_bytes(text.getvalue().encode(self.encoding))
        if self.own:
            (path.parent / "table.toml").write_text(self.own)


WAYS = {
    "pandas": Way(index=True),
    "R": Way(index=True, quoted=True),
    "R, write.csv2": Way(";", index=True, quoted=True, decimal=","),
    "Excel": Way(end="\r\n", encoding="utf-8-sig"),
    "German Excel": Way(";", "\r\n", "cp1252", ","),
    "Excel, Unicode text": Way("\t", "\r\n", "utf-16"),
    "SAS": Way(end="\r\n", encoding="cp1252"),
    "old Mac": Way(";", "\r", "cp1252"),
    "bars": Way("|", decimal=","),
    "thousands": Way(";", decimal=",", thousands=".", own='thousands = "."\ndecimal = ","\n'),
    "Swiss": Way(";", thousands="'", own="thousands = \"'\"\n"),
    "French": Way(
        ";", "\r\n", "cp1252", ",", "\u00a0", own='thousands = " "\ndecimal = ","\n'
    ),
    "percent": Way(unit=" %", own='units = ["%"]\n'),
    "MacRoman": Way(encoding="mac-roman", own='encoding = "mac-roman"\n'),
    "UTF-16 without a mark": Way(
        ";", encoding="utf-16-le", own='encoding = "utf-16-le"\n'
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_learned_from_however_it_was_written(
    tmp_path: Path, request: pytest.FixtureRequest, name: str, way: str
) -> None:
    table, path = TABLES[name](), tmp_path / "t.csv"
    WAYS[way].write(path, table)
    options = SourceOptions(own=own_table_of(path, None))
    drafted = draft_schema([path], options)
    schema = drafted.schema
    check_tables([path], schema, options)
    label = schema.fields[-1]
    assert label.cells.categories == tuple(sorted(set(table.classes)))
    key = SecretKey.generate()
    seal_table(
        path, schema, options=options, name="t", part="train", owner="north", key=key,
        out_dir=tmp_path,
    )  # fmt: skip
    inputs = [
        each.name
        for each in schema.fields[:-1]
        if each.cells.column not in ("column 1",)
    ]
    model = torch.nn.Linear(table.numbers.shape[1], len(label.cells.categories))
    step = torch.optim.SGD(model.parameters(), lr=1e-6)
    seen = []
    rows = SealedDataset(tmp_path / "t.sealed", {"t": key})
    request.addfinalizer(rows.close)
    loader = SealedDataLoader(rows, batch_size=64)
    request.addfinalizer(loader.close)
    for batch in loader:
        parts = [
            batch[each].double().reshape(len(batch[label.name]), -1) for each in inputs
        ]
        numbers = torch.cat(parts, dim=1)
        seen.append(numbers.numpy())
        loss = torch.nn.functional.cross_entropy(
            model(numbers.float()), batch[label.name]
        )
        step.zero_grad()
        loss.backward()
        step.step()
    written = np.round(table.numbers, 6)
    assert np.allclose(np.concatenate(seen), written, rtol=1e-6, atol=1e-6)
