"""Any workers, any batches, stopped anywhere: the rows of a run that never stopped."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sealift.data import SealedDataLoader, SealedDataset
from tests.sim.examples import examples
from tests.sim.sealed_shards import seal_shards


@pytest.fixture(scope="module")
def dataset() -> Iterator[SealedDataset]:
    with tempfile.TemporaryDirectory() as folder:
        shards = seal_shards(Path(folder), (17, 1, 30))
        with shards.open() as opened:
            yield opened


@st.composite
def stops(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Per stretch: batches until it stops, their size, and how many workers."""
    stretch = st.tuples(st.integers(0, 4), st.integers(1, 20), st.integers(0, 3))
    return draw(st.lists(stretch, min_size=1, max_size=5))


def read(
    dataset: SealedDataset,
    options: dict[str, Any],
    stretches: list[tuple[int, int, int]],
) -> list[int]:
    """Rows of several loaders, each of which goes on where the one before stopped."""
    rows: list[int] = []
    state = None
    for count, batch_size, num_workers in stretches:
        with SealedDataLoader(
            dataset, batch_size, num_workers=num_workers, **options
        ) as batches:
            if state is not None:
                batches.load_state_dict(json.loads(state))
            for batch in islice(iter(batches), count):
                rows += batch["id"].tolist()
            state = json.dumps(batches.state_dict())
    return rows


@examples(30)
@given(stops(), st.booleans(), st.integers(0, 2), st.integers(1, 900), st.booleans())
def test_stopping_changes_nothing(
    dataset: SealedDataset,
    stretches: list[tuple[int, int, int]],
    shuffle: bool,
    rank: int,
    window_bytes: int,
    shared: bool,
) -> None:
    options = {
        "shuffle": shuffle, "seed": 1, "window_bytes": window_bytes,
        "rank": rank if shared else 0, "world_size": 3 if shared else 1,
    }  # fmt: skip
    rows = read(dataset, options, stretches)
    with SealedDataLoader(dataset, 1, num_workers=0, **options) as batches:
        whole: list[int] = []
        while len(whole) < len(rows):
            whole += [int(batch["id"]) for batch in batches]
    assert rows == whole[: len(rows)]
