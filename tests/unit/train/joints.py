"""Joint training over small rows, in place."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

from torch import Tensor

from sealift.data.schedule.memory import SharedBuffer
from sealift.data.schedule.visits import Stop
from sealift.data.schema.document import schema_from_plain
from sealift.ids import Digest
from sealift.release.agreement import Part, Resource
from sealift.train.loop.trainer import Trainer
from sealift.travel.accelerator.setup import LoadedCargo
from sealift.travel.settings import TrainingSettings
from tests.sim.inplace import InPlace
from tests.unit.train.recipes import PLAIN, SETTINGS, rows

SCHEMA: dict[str, Any] = {
    "fields": [
        {"name": "x", "dtype": "float32", "shape": [4], "min": -3.0, "max": 3.0},
        {"name": "y", "dtype": "int64", "classes": 2},
    ]
}
ROW_BYTES = schema_from_plain(SCHEMA).row_bytes


def resource(owner: str, count: int, part: Part = "train") -> Resource:
    return Resource(
        name=f"{owner}-{part}",
        owner=owner,
        part=part,
        rows=count,
        row_bytes=ROW_BYTES,
        cell_rows=1,
        total_bytes=count * ROW_BYTES,
        record_bytes=1024,
        schema=SCHEMA,
        content=Digest.of(b"content"),
        key=Digest.of(b"key"),
    )


def cargo(
    owner: str, count: int = 32, *, part: Part = "train", epoch: int = 0
) -> LoadedCargo:
    """Rows that the owner's name decides."""
    found = rows(count, seed=len(owner))
    return cargo_of(resource(owner, count, part), found, epoch=epoch)


def cargo_of(of: Resource, found: Tensor, *, epoch: int = 0) -> LoadedCargo:
    shared = SharedBuffer.of(found.contiguous().numpy().tobytes())
    weakref.finalize(shared, shared._file.close)
    stop = Stop(epoch, of.owner, of.name, "train", 0, len(found))
    return LoadedCargo(stop, of, shared)


def in_place(text: str = PLAIN) -> InPlace:
    return InPlace({"recipe.py": text.encode()}, "recipe.py")


def joint(
    text: str = PLAIN, settings: TrainingSettings = SETTINGS, **more: Any
) -> Trainer:
    return Trainer(in_place(text), replace(settings), **more)
