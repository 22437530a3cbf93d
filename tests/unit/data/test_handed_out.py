"""What ``SealedDataLoader`` hands out, and what it takes for an option."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from sealift.data import SealedDataLoader, SealedDataset
from sealift.errors import UsageError
from tests.sim.sealed_shards import seal_shards


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SealedDataset]:
    with seal_shards(tmp_path_factory.mktemp("shards")).open() as dataset:
        yield dataset


def loader(dataset: SealedDataset, **changes: Any) -> SealedDataLoader:
    options = {"batch_size": 8, "shuffle": True, "seed": 3, "window_bytes": 700}
    return SealedDataLoader(dataset, **{**options, **changes})


def drain(batches: Any, seen: list[int]) -> None:
    for batch in batches:
        seen += batch["id"].tolist()


def test_a_transform_of_batches(dataset: SealedDataset) -> None:
    def doubled(batch: Any) -> Any:
        number, x = batch
        return number, x * 2

    with loader(dataset, fields=("id", "x"), num_workers=0) as plain:
        expected = list(plain)
    with loader(dataset, fields=("id", "x"), transform=doubled) as batches:
        for (here, twice), (number, x) in zip(batches, expected, strict=True):
            assert torch.equal(here, number)
            assert torch.equal(twice, x * 2)
    with pytest.raises(UsageError, match="before it is verified"):
        loader(dataset, fields=("x",), drop_last=True, verdicts="deferred",
               transform=doubled)  # fmt: skip


def test_a_batch_that_was_not_handed_out_comes_again(dataset: SealedDataset) -> None:
    """Whatever stopped it: a transform, or no memory left on its device."""
    failures = iter([False, False, True])

    def fails_once(batch: Any) -> Any:
        if next(failures, False):
            raise MemoryError
        return batch

    with (
        loader(dataset, transform=fails_once) as batches,
        loader(dataset) as untouched,
    ):
        whole: list[int] = []
        seen: list[int] = []
        drain(untouched, whole)
        with pytest.raises(MemoryError):
            drain(batches, seen)
        batches.load_state_dict(batches.state_dict())
        drain(batches, seen)
    assert seen == whole


def test_what_counts_is_a_number_from_zero(dataset: SealedDataset) -> None:
    batches = loader(dataset)
    for wrong in (-1, "1", 1.5, True):
        with pytest.raises(UsageError, match="the epoch"):
            batches.set_epoch(wrong)  # type: ignore[arg-type]
    for wrong in (2.5, "8", 0, True):
        with pytest.raises(UsageError, match="at least one row"):
            loader(dataset, batch_size=wrong)
    with pytest.raises(UsageError, match="fields="):
        loader(dataset, fields="id")
