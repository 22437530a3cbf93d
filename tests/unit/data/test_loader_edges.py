"""``SealedDataLoader`` where people expect torch's ``DataLoader``."""

from __future__ import annotations

import gc
import os
import traceback
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset, random_split

from sealift.channel.device.host import HostDevice
from sealift.data import SealedDataLoader, SealedDataset
from sealift.errors import MalformedError, UnavailableError, UsageError
from tests.sim.sealed_shards import Shards, seal_shards
from tests.unit.data.test_dataset import Sealed

ROWS = 100
WINDOWS = (1, 700, 1 << 20)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return seal_shards(tmp_path_factory.mktemp("shards"))


@pytest.fixture
def dataset(shards: Shards) -> Iterator[SealedDataset]:
    with shards.open() as dataset:
        yield dataset


def ids(batches: Any) -> list[int]:
    return [int(row) for batch in batches for row in batch["id"]]


def read(data: Any, **changes: Any) -> list[int]:
    with SealedDataLoader(data, 8, **{"window_bytes": 700, **changes}) as batches:
        return ids(batches)


CHOICES = {
    "one": [99],
    "every tenth": list(range(0, ROWS, 10)),
    "some twice": [3, 3, 3, 40, 41, 41, 99],
    "one shard": list(range(37, 42)),
    "sparse, then dense": [*range(0, 60, 9), *range(60, ROWS)],
}


@pytest.mark.parametrize("window_bytes", WINDOWS)
@pytest.mark.parametrize("chosen", CHOICES.values(), ids=CHOICES)
def test_a_subset_has_its_rows_and_no_others(
    shards: Shards, dataset: SealedDataset, chosen: list[int], window_bytes: int
) -> None:
    part = Subset(dataset, chosen)
    assert read(part, window_bytes=window_bytes) == chosen
    shuffled = {"shuffle": True, "window_bytes": window_bytes}
    assert sorted(read(part, **shuffled)) == chosen
    with SealedDataLoader(part, 8, **shuffled) as batches:
        for batch in batches:
            expected = torch.from_numpy(shards.arrays["x"])[batch["id"]]
            assert torch.equal(batch["x"], expected)


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_share_a_subset(dataset: SealedDataset, world_size: int) -> None:
    part = Subset(dataset, CHOICES["sparse, then dense"])
    parts = [
        read(part, shuffle=True, world_size=world_size, rank=rank)
        for rank in range(world_size)
    ]
    assert len({len(each) for each in parts}) == 1
    assert {row for each in parts for row in each} == set(part.indices)


def test_whoever_opens_gives_the_same_rows(tmp_path: Path) -> None:
    rows = seal_shards(tmp_path, record_bytes=210)  # whole rows, for a device
    chosen = CHOICES["sparse, then dense"]
    with rows.open() as dataset, closing(HostDevice()) as engine:
        part = Subset(dataset, chosen)
        seen = [
            read(part, shuffle=True, **how)
            for how in ({"num_workers": 0}, {"workers": "process"}, {"engine": engine})
        ]
    assert seen[0] == seen[1] == seen[2]
    assert sorted(seen[0]) == chosen


def test_splits_share_no_row_and_lose_none(dataset: SealedDataset) -> None:
    train, held_out = random_split(dataset, [0.8, 0.2])
    first, second = read(train, shuffle=True), read(held_out)
    assert second == sorted(held_out.indices)
    assert sorted(first + second) == list(range(ROWS))
    assert sorted(read(ConcatDataset([held_out, train]))) == list(range(ROWS))


def test_several_datasets_are_one(shards: Shards, dataset: SealedDataset) -> None:
    with SealedDataset(shards.places[1], shards.keys) as second:
        both = ConcatDataset([Subset(dataset, [0, -1]), second])
        assert read(both) == ids(DataLoader(both)) == [0, 99, *range(37, 42)]
        again = Subset(both, [1, 6])
        assert read(again) == [99, 41]
        with SealedDataLoader(both, 8) as batches:
            second.close()
            with pytest.raises(UsageError, match="closed"):
                iter(batches)


def test_tables_of_other_columns_do_not_join(
    dataset: SealedDataset, tmp_path: Path
) -> None:
    with Sealed(tmp_path).open() as other, pytest.raises(MalformedError) as caught:
        read(ConcatDataset([dataset, other]))
    assert caught.value.code == "schema-mismatch"


def test_a_state_goes_on_with_the_same_subset_only(dataset: SealedDataset) -> None:
    halves = random_split(dataset, [0.5, 0.5])
    with SealedDataLoader(halves[0], 8, shuffle=True) as batches:
        part = iter(batches)
        seen = ids([next(part), next(part)])
        state = batches.state_dict()
    with SealedDataLoader(halves[0], 5, shuffle=True) as batches:
        batches.load_state_dict(state)
        assert sorted(seen + ids(batches)) == sorted(halves[0].indices)
    for other in (halves[1], dataset):
        with (
            SealedDataLoader(other, 8, shuffle=True) as batches,
            pytest.raises(UsageError) as caught,
        ):
            batches.load_state_dict(state)
        assert caught.value.code == "loader-state"


class Doubled(Subset[Any]):
    """Changes its rows."""


def test_what_is_not_only_rows_is_refused(dataset: SealedDataset) -> None:
    for data in (Doubled(dataset, [1]), [1, 2], ConcatDataset([[1], dataset])):
        with pytest.raises(UsageError, match="a sealed loader cannot read"):
            SealedDataLoader(data)  # type: ignore[arg-type]
    for indices in ([ROWS], [-ROWS - 1], [0.5], [True], [[1]], []):
        with pytest.raises(UsageError):
            SealedDataLoader(Subset(dataset, indices))


@pytest.mark.parametrize(
    ("name", "value", "instead"),
    [
        ("sampler", [1], "Subset"),
        ("batch_sampler", [[1]], "Subset"),
        ("collate_fn", list, "transform="),
        ("pin_memory", True, "device="),
        ("generator", torch.Generator(), "seed="),
        ("prefetch_factor", 2, "window_bytes="),
        ("worker_init_fn", print, "only open records"),
    ],
)
def test_torchs_arguments_have_one_line_each(
    dataset: SealedDataset, name: str, value: object, instead: str
) -> None:
    with pytest.raises(UsageError, match=f"{name}=.*{instead}"):
        SealedDataLoader(dataset, **{name: value})


def test_torchs_defaults_mean_nothing(dataset: SealedDataset) -> None:
    options = {"pin_memory": False, "collate_fn": None, "in_order": True, "timeout": 0}
    SealedDataLoader(dataset, **options, persistent_workers=True).close()
    with pytest.raises(TypeError, match="bach_size"):
        SealedDataLoader(dataset, bach_size=3)


def test_frameworks_see_what_they_ask_for(dataset: SealedDataset) -> None:
    with SealedDataLoader(dataset, 8, drop_last=True, num_workers=2) as batches:
        assert (batches.batch_size, batches.drop_last, batches.num_workers) == (
            8, True, 2,
        )  # fmt: skip
        assert batches.dataset is dataset
        with pytest.raises(AttributeError):
            batches.drop_last = False  # type: ignore[misc]


def test_it_says_what_it_is(dataset: SealedDataset) -> None:
    columns = "id: int64, x: float32[3], kept: bool"
    assert repr(dataset) == f"SealedDataset(3 shards, 100 rows of {columns})"
    with SealedDataLoader(Subset(dataset, [1, 2]), 8, fields=("x", "id")) as batches:
        assert repr(batches) == (
            "SealedDataLoader(2 rows of x, id; batch_size=8, shuffle=False, seed=0, "
            "drop_last=False, rank=0 of 1, num_workers=1)"
        )


def test_slices_are_columns(shards: Shards, dataset: SealedDataset) -> None:
    for part in (slice(3, 9), slice(None, None, -7), slice(-2, None), slice(5, 5)):
        rows = dataset[part]
        for name, array in shards.arrays.items():
            np.testing.assert_array_equal(rows[name], array[part])
    assert dataset[torch.tensor(4)]["id"] == dataset[np.int32(4)]["id"] == 4
    for index in ("id", 1.0, [1]):
        with pytest.raises(TypeError):
            dataset[index]  # type: ignore[index]


def test_a_look_says_that_it_was_an_epoch(dataset: SealedDataset) -> None:
    with SealedDataLoader(dataset, 8, shuffle=True) as untouched:
        first = ids(untouched)
    with SealedDataLoader(dataset, 8, shuffle=True) as batches:
        next(iter(batches))
        batches.set_epoch(0)
        assert ids(batches) == first
        next(iter(batches))
        with pytest.warns(UserWarning, match=r"used up epoch 1.*set_epoch\(\)") as said:
            ids(batches)
        assert said[0].filename == __file__


def children() -> set[str]:
    return set(
        Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    )


def test_a_loader_that_is_dropped_leaves_no_process(dataset: SealedDataset) -> None:
    before = children()
    batches = SealedDataLoader(dataset, 8, workers="process", num_workers=2)
    next(iter(batches))
    assert len(children() - before) == 2
    with warnings.catch_warnings(category=ResourceWarning, action="ignore"):
        del batches
        gc.collect()
    assert children() <= before


def test_a_traceback_names_the_error(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError) as caught:
        SealedDataset(tmp_path / "gone.sealed", {})
    told = "".join(traceback.format_exception_only(caught.value))
    assert told.endswith("\n[shard-unreadable] see: sealift explain shard-unreadable\n")
    assert "[" not in str(caught.value)
