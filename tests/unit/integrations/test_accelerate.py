"""A sealed loader beside one of torch's that Accelerate prepared itself."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from torch import nn
from torch.utils.data import DataLoader

from sealift.data import SealedDataLoader, SealedDataset
from sealift.errors import UsageError
from sealift.integrations.accelerate import PreparedLoader, prepare_loader
from tests.sim.sealed_shards import seal_shards

BATCH = 15  # of 100 rows: seven batches, and the last one is shorter
EVERY = 2


@pytest.fixture
def dataset(tmp_path: Path) -> Iterator[SealedDataset]:
    with seal_shards(tmp_path).open() as opened:
        yield opened


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    yield Accelerator(cpu=True, gradient_accumulation_steps=EVERY)
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def sealed(dataset: SealedDataset, **options: Any) -> SealedDataLoader:
    return SealedDataLoader(dataset, BATCH, **options)


def steps(accelerator: Accelerator, loader: Any) -> list[float]:
    """The one weight after each step of an optimizer."""
    torch.manual_seed(0)
    model, found = nn.Linear(1, 1, bias=False), []
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    prepared, stepped = accelerator.prepare(model, optimizer)
    for batch in loader:
        with accelerator.accumulate(prepared):
            x = batch["id"].float()[:, None]
            accelerator.backward((prepared(x) - x).square().mean())
            stepped.step()
            if accelerator.sync_gradients:
                found.append(prepared.weight.item())
            stepped.zero_grad()
    return found


def test_the_last_gradients_that_are_accumulated_count(
    accelerator: Accelerator, dataset: SealedDataset
) -> None:
    plain = accelerator.prepare(DataLoader(dataset, BATCH))
    expected = steps(accelerator, plain)
    assert len(expected) == 4
    with sealed(dataset) as loader:
        assert steps(accelerator, prepare_loader(accelerator, loader)) == expected
    with sealed(dataset) as loader:  # the control: as `prepare` leaves it
        assert len(steps(accelerator, accelerator.prepare(loader))) == 3


def test_measures_are_of_each_row_once(
    accelerator: Accelerator, dataset: SealedDataset
) -> None:
    with sealed(dataset) as loader:
        prepared = prepare_loader(accelerator, loader)
        found = [accelerator.gather_for_metrics(each["id"]) for each in prepared]
    assert torch.cat(found).tolist() == list(range(100))
    assert len(prepared) == 7
    assert prepared.total_batch_size == BATCH


def test_it_goes_on_where_a_checkpoint_was_made(
    accelerator: Accelerator, dataset: SealedDataset, tmp_path: Path
) -> None:
    with sealed(dataset, shuffle=True, seed=2) as loader:
        prepared = prepare_loader(accelerator, loader)
        batches = iter(prepared)
        seen = [next(batches)["id"].tolist() for _ in range(3)]
        accelerator.save_state(str(tmp_path / "saved"))
        rest = [each["id"].tolist() for each in batches]
        accelerator.load_state(str(tmp_path / "saved"))
        assert [each["id"].tolist() for each in prepared] == rest
        assert sorted(chain.from_iterable(seen + rest)) == list(range(100))


def test_batches_are_skipped_without_being_opened(
    accelerator: Accelerator, dataset: SealedDataset
) -> None:
    with sealed(dataset) as loader:
        prepared = prepare_loader(accelerator, loader)
        prepared.skip_first_batches(5)
        assert [len(each["id"]) for each in prepared] == [15, 10]
        assert [len(each["id"]) for each in prepared] == [15] * 6 + [
            10
        ]  # the next epoch
        prepared.skip_first_batches(6)  # of the one behind it
        assert [len(each["id"]) for each in prepared] == [10]
        assert loader.state_dict()["epoch"] == 3  # the next one


@pytest.mark.parametrize("part", [(1, 2), (0, 2)])
def test_another_processs_part_is_refused(
    accelerator: Accelerator, dataset: SealedDataset, part: tuple[int, int]
) -> None:
    rank, world = part
    with sealed(dataset, rank=rank, world_size=world) as loader:
        with pytest.raises(UsageError) as caught:
            prepare_loader(accelerator, loader)
        assert caught.value.code == "loader-world"


def test_prepared_once_and_twice(
    accelerator: Accelerator, dataset: SealedDataset
) -> None:
    with sealed(dataset) as loader:
        prepared = prepare_loader(accelerator, loader)
        assert isinstance(prepared, PreparedLoader)
        assert accelerator.prepare_data_loader(prepared) is prepared
