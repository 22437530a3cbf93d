"""Small sealed datasets of several shards, with rows that say which they are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sealift.crypto.keys import SecretKey
from sealift.data.schema.card import ResourceCard
from sealift.data.schema.rows import Array
from sealift.data.schema.schema import Field, Schema
from sealift.data.sealing import seal_table
from sealift.data.shards.dataset import SealedDataset

ID_SCHEMA = Schema(
    (
        Field("id", "int64"),
        Field("x", "float32", (3,)),
        Field("kept", "bool"),
    )
)


@dataclass
class Shards:
    """Sealed shards, their keys by resource, and what was sealed."""

    folder: Path
    places: list[Path]
    keys: dict[str, SecretKey]
    cards: list[ResourceCard]
    arrays: dict[str, Array]

    def open(self) -> SealedDataset:
        return SealedDataset(self.places, self.keys)


def seal_shards(
    folder: Path, rows: tuple[int, ...] = (37, 5, 58), *, record_bytes: int = 200
) -> Shards:
    """Shards whose ``id`` counts through all of them."""
    made = Shards(folder, [], {}, [], arrays_of(sum(rows)))
    start = 0
    for number, count in enumerate(rows):
        name = f"part-{number}"
        source = folder / f"{name}.npz"
        np.savez(
            source, **{k: v[start : start + count] for k, v in made.arrays.items()}
        )
        key = made.keys[name] = SecretKey.generate()
        card = seal_table(
            source, ID_SCHEMA, name=name, part="train", owner="north",
            key=key, out_dir=folder, record_bytes=record_bytes,
        )  # fmt: skip
        made.cards.append(card)
        made.places.append(folder / f"{name}.sealed")
        start += count
    return made


def arrays_of(rows: int) -> dict[str, Array]:
    generator = np.random.default_rng(7)
    return {
        "id": np.arange(rows),
        "x": generator.random((rows, 3), dtype=np.float32),
        "kept": generator.random(rows) > 0.5,
    }
