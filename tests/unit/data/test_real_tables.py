"""Real tables, as many programs write them: drafted, sealed, brought to a meeting, learned from.

Each is written in every way; however it is written, it is the same table, or what stands
against it is said at home. Then two owners who write it in two ways join one meeting, and
what they sealed there is learned from for an epoch.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn import datasets

from sealift.cli.meeting.place import open_folder
from sealift.crypto.keys import SecretKey
from sealift.data import SealedDataLoader, SealedDataset
from sealift.data.schema.document import schema_to_toml
from sealift.data.schema.owntable import own_table_of
from sealift.data.schema.rows import unpack
from sealift.data.schema.schema import Schema
from sealift.data.sealing import seal_table
from sealift.data.sources.source import SourceOptions
from sealift.data.sources.table import (
    check_tables,
    draft_schema,
    infer_schema,
    open_table,
)
from sealift.errors import MalformedError
from sealift.meet import owner as owner_side
from sealift.release.broker.stores import opened_vault
from tests.sim import lyinghost
from tests.sim.lyinghost import lying_host
from tests.sim.realtables import PLAIN, WAYS, RealTable, Way, found_tables

pytestmark = pytest.mark.long
TABLES = found_tables()
# What stands against them in any way of writing, as their owners read it.
REFUSED = {
    "lifelines c_botulinum_lag_phase": "inf is not finite",
    "lifelines mice": "inf is not finite",
    "lifelines canadian_senators": "is not a date like",
}
FEWEST_ROWS = 16  # that a meeting takes


def test_there_are_as_many_tables_and_ways_as_is_said() -> None:
    assert len(TABLES) >= 60
    assert len(WAYS) >= 12


def options_of(path: Path) -> SourceOptions:
    return SourceOptions(own=own_table_of(path, None))


def drafted(path: Path) -> Schema:
    schema = draft_schema([path], options_of(path)).schema
    check_tables([path], schema, options_of(path))
    return schema


def read(path: Path) -> tuple[Schema, bytes]:
    """Schema and rows; an owner follows the advice about a decimal mark."""
    try:
        schema = drafted(path)
    except MalformedError as error:
        mark = next(
            (each for each in ",." if f'line `decimal = "{each}"`' in str(error)), ""
        )
        if not mark:
            raise
        with (path.parent / "table.toml").open("a") as own:
            own.write(f'decimal = "{mark}"\n')
        schema = drafted(path)
    table = open_table(path, schema, options_of(path), checked=False)
    return schema, b"".join(table.blocks())


def content(schema: Schema, raw: bytes, way: Way) -> list[Any]:
    """What a model learns from, by the order of the fields."""
    found: list[Any] = []
    for field in schema.fields:
        column = unpack(raw, schema)[field.name]
        names = field.cells.categories
        texts = [
            names[number].replace(way.letter, "o").replace(",", ".")
            for number in (column.tolist() if names else ())
        ]
        found.append(texts or (field.dtype, field.shape, column.tobytes()))
    return found


@pytest.mark.parametrize("name", TABLES)
def test_it_is_the_same_table_however_it_is_written(tmp_path: Path, name: str) -> None:
    table, path = TABLES[name](), tmp_path / "t.csv"
    PLAIN.write(path, table)
    if name in REFUSED:
        for way in (PLAIN, *WAYS.values()):
            way.write(path, table)
            with pytest.raises(MalformedError) as caught:
                read(path)
            problems = " ".join([str(caught.value), *caught.value.problems])
            assert REFUSED[name] in problems.lower()
        return
    expected = content(*read(path), PLAIN)
    for title, way in WAYS.items():
        way.write(path, table)
        schema, raw = read(path)
        assert content(schema, raw, way) == expected, title
        key = SecretKey.generate()
        sealed = seal_table(
            path, schema, options=options_of(path), name="t", part="train", owner="north",
            key=key, out_dir=tmp_path,
        )  # fmt: skip
        assert sealed.resource.rows == len(table.rows)
        for each in tmp_path.glob("t.*"):
            if each != path:
                each.unlink()


def own_words(way: Way, schema: Schema) -> str:
    """What the owner says of columns and texts that its file calls otherwise."""
    if way.letter == "o":
        return way.own
    left_out = [each.replace("o", way.letter) for each in schema.leave_out]
    lines = [f"leave_out = {json.dumps(left_out)}", way.own, "[columns]"]
    synonyms: list[str] = []
    for field in schema.fields:
        if field.cells.missing:
            continue
        rules = field.cells
        names = rules.columns or (rules.column or field.name,)
        written = [each.replace("o", way.letter) for each in names]
        if field.shape and not rules.columns:
            continue
        lines.append(f"{field.name} = {json.dumps(written, ensure_ascii=False)}")
        synonyms.append(f"[synonyms.{field.name}]")
        synonyms += [
            f"{json.dumps(each.replace('o', way.letter), ensure_ascii=False)} = "
            f"{json.dumps(each, ensure_ascii=False)}"
            for each in rules.categories
        ]
    return "\n".join([*lines, *synonyms, ""])


@pytest.fixture
def quick_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """They cost a third of a second, and are compared by people."""
    monkeypatch.setattr(owner_side, "words_of", lambda terms: ("words",) * 8)


PAIRS = dict(
    zip(TABLES, itertools.cycle(itertools.pairwise([*WAYS, "Excel"])), strict=False)
)


@pytest.mark.parametrize("name", [each for each in TABLES if each not in REFUSED])
def test_two_owners_bring_it_to_a_meeting_and_it_is_learned_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick_words: None, name: str
) -> None:
    table = TABLES[name]()
    PLAIN.write(tmp_path / "sample.csv", table)
    schema, raw = read(tmp_path / "sample.csv")
    expected = content(schema, raw, PLAIN)
    monkeypatch.setattr(lyinghost, "SCHEMA", schema_to_toml(schema))
    with lying_host(tmp_path) as meeting:
        owners = []
        for owner, title in zip(("north", "east"), PAIRS[name], strict=True):
            write_own(tmp_path / owner, WAYS[title], table, schema)
            owners.append(meeting.owner(owner).begin())
        if len(table.rows) < FEWEST_ROWS:
            for each in owners:
                assert each.refused().code in ("too-few-rows", "meeting-declined")
            assert "too-few-rows" in {each.refused().code for each in owners}
            return
        for each in owners:
            assert each.end() == each.kept, each.outcome
    for owner in ("north", "east"):
        batches = [*sealed_rows(tmp_path / owner, owner)]
        for place, field in enumerate(schema.fields):
            rows = np.concatenate([each[field.name].numpy() for each in batches])
            if names := field.cells.categories:
                words = [names[number].replace(",", ".") for number in rows.tolist()]
                assert words == expected[place], field.name
            else:
                assert rows.tobytes() == expected[place][2], field.name
        learn(schema, batches)


def test_images_as_torchvision_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick_words: None
) -> None:
    """Handwritten digits; east has no fives and no nines."""
    loaded = datasets.load_digits()
    for owner, classes in (("north", range(10)), ("east", (1, 2, 3, 4, 6, 7, 8, 0))):
        for kind in classes:
            folder = tmp_path / owner / "digits" / f"digit {kind}"
            folder.mkdir(parents=True)
            for place in np.flatnonzero(loaded.target == kind)[:8].tolist():
                pixels = (loaded.images[place] * 15).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{place}.png")
    schema = infer_schema(tmp_path / "north" / "digits")
    monkeypatch.setattr(lyinghost, "SCHEMA", schema_to_toml(schema))
    with lying_host(tmp_path) as meeting:
        owners = [
            meeting.owner(name, options={"data": tmp_path / name / "digits"}).begin()
            for name in ("north", "east")
        ]
        for each in owners:
            assert each.end() == each.kept, each.outcome
    labels = []
    for owner in ("north", "east"):
        batches = [*sealed_rows(tmp_path / owner, owner)]
        labels.append(torch.cat([each["label"] for each in batches]))
        learn(schema, batches)
    assert sorted(set(labels[0].tolist())) == [*range(10)]
    assert sorted(set(labels[1].tolist())) == [0, 1, 2, 3, 4, 6, 7, 8]


def write_own(folder: Path, way: Way, table: RealTable, schema: Schema) -> None:
    """An owner's file and table.toml, which follows advice about a decimal mark."""
    folder.mkdir()
    path = folder / "train.csv"
    way.write(path, table)
    words = own_words(way, schema)
    try:
        drafted(path)
    except MalformedError as error:
        for mark in ",.":
            if f'line `decimal = "{mark}"`' in str(error):
                words = f'decimal = "{mark}"\n{words}'
    (folder / "table.toml").write_text(words)


def sealed_rows(folder: Path, owner: str) -> Iterator[dict[str, torch.Tensor]]:
    """One epoch over what an owner sealed in its folder."""
    name = f"{owner}-train"
    with opened_vault(
        folder / "vault.db", open_folder(folder, owner).identity()
    ) as vault:
        key = vault.fetch(name)
    rows = SealedDataset(folder / "sealed" / f"{name}.sealed", {name: key})
    loader = SealedDataLoader(rows, batch_size=64)
    try:
        for batch in loader:
            yield {field: batch[field].clone() for field in batch}
    finally:
        loader.close()
        rows.close()


def learn(schema: Schema, batches: list[dict[str, torch.Tensor]]) -> None:
    """A linear model of the first field with categories, or of the last field."""
    label = next(
        (each for each in schema.fields if each.cells.categories), schema.fields[-1]
    )
    inputs = sum(each.elements for each in schema.fields)
    model = torch.nn.Linear(inputs, label.classes or 1)
    step = torch.optim.SGD(model.parameters(), lr=1e-3)
    for batch in batches:
        columns = [
            batch[each.name].double().flatten(1)
            if each.shape
            else batch[each.name].double()[:, None]
            for each in schema.fields
        ]
        numbers = torch.cat(columns, dim=1)
        numbers = (torch.sign(numbers) * torch.log1p(numbers.abs())).float()
        found, target = model(numbers), batch[label.name]
        if label.classes:
            loss = torch.nn.functional.cross_entropy(found, target)
        else:
            loss = found.sub(numbers[:, -1:]).square().mean()
        step.zero_grad()
        loss.backward()
        step.step()
        assert torch.isfinite(loss)
