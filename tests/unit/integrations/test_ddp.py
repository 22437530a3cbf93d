"""What DDP can do, over the backend that scripts use."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.algorithms.join import Join

from sealift.errors import SealiftError
from tests.sim.torchranks import on_ranks

pytestmark = pytest.mark.distributed
WORLD = 2


class Branches(nn.Module):
    """Which of its layers are used is a rank's own choice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, rows: torch.Tensor, *, both: bool) -> torch.Tensor:
        found: torch.Tensor = self.first(rows)
        return found + self.second(rows) if both else found


def parallel(**terms: Any) -> nn.parallel.DistributedDataParallel:
    torch.manual_seed(0)
    return nn.parallel.DistributedDataParallel(Branches(), **terms)


def rows(seed: int) -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))


def gradients(model: nn.Module) -> list[Any]:
    return [None if p.grad is None else p.grad.tolist() for p in model.parameters()]


def expected(batches: list[tuple[int, bool]]) -> list[Any]:
    """The mean over ranks of what these batches' gradients sum to."""
    torch.manual_seed(0)
    alone = Branches()
    for seed, both in batches:
        (alone(rows(seed), both=both).square().sum() / WORLD).backward()
    return gradients(alone)


def accumulate(rank: int) -> tuple[list[Any], list[Any]]:
    model = parallel()
    with model.no_sync():
        model(rows(rank), both=True).square().sum().backward()
    before = gradients(model)
    model(rows(10 + rank), both=True).square().sum().backward()
    return before, gradients(model)


def leave_out(rank: int) -> list[Any]:
    model = parallel(find_unused_parameters=True)
    model(rows(rank), both=rank == 0).square().sum().backward()
    return gradients(model)


def close(found: list[Any], wanted: list[Any]) -> bool:
    return all(
        torch.allclose(torch.tensor(one), torch.tensor(two), rtol=1e-5)
        for one, two in zip(found, wanted, strict=True)
    )


def test_no_sync_keeps_gradients_until_they_are_summed() -> None:
    (one, first), (two, second) = on_ranks(WORLD, accumulate)
    assert one != two
    assert first == second
    assert close(first, expected([(0, True), (1, True), (10, True), (11, True)]))


def test_a_parameter_that_one_rank_leaves_out() -> None:
    first, second = on_ranks(WORLD, leave_out)
    assert first == second
    assert close(first, expected([(0, True), (1, False)]))


def uneven(rank: int) -> tuple[int, list[Any]]:
    model = parallel()
    descent = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = 0
    with Join([model]):
        for step in range(2 + 2 * rank):
            descent.zero_grad()
            model(rows(step), both=True).square().sum().backward()
            descent.step()
            steps += 1
    return steps, [each.tolist() for each in model.parameters()]


def test_ranks_with_fewer_batches_join() -> None:
    (few, first), (many, second) = on_ranks(WORLD, uneven)
    assert (few, many) == (2, 4)
    assert first == second


def spoil(rank: int) -> list[Any]:
    found = []
    for value in (float("nan"), float("inf")):
        for hook in (None, allreduce_hook):
            model = parallel()
            if hook is not None:
                model.register_comm_hook(None, hook)
            scale = value if rank else 1.0
            (model(rows(rank), both=True).sum() * scale).backward()
            found.append(torch.stack([p.grad.sum() for p in model.parameters()]))
    return [bool(each.isfinite().any()) for each in found]


def test_nan_and_infinity_reach_every_rank() -> None:
    assert on_ranks(WORLD, spoil) == [[False] * 4] * WORLD


def subgroups(rank: int) -> tuple[float, float, str]:
    alone, swapped = dist.new_group([1]), dist.new_group([1, 0])
    mine = torch.full((2,), float(rank + 1))
    if rank == 1:
        dist.all_reduce(mine, group=alone)
    dist.all_reduce(total := mine.clone(), group=swapped)
    return mine[0].item(), total[0].item(), dist.get_backend(swapped)


def test_a_group_of_some_ranks() -> None:
    assert on_ranks(WORLD, subgroups) == [
        (1.0, 3.0, "sealift"),
        (2.0, 3.0, "sealift"),
    ]


def error_of(model: nn.Module, steps: int) -> str:
    for step in range(steps):
        try:
            model(rows(step), both=True).square().sum().backward()
        except SealiftError as error:
            return type(error).__name__
    return ""


def die(rank: int) -> str:
    model = parallel()
    found = error_of(model, 2)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return found + error_of(model, 1)


def abort(rank: int) -> str:
    model = parallel()
    model.register_comm_hook(None, allreduce_hook)
    found = error_of(model, 2)
    if rank == 1:
        dist.group.WORLD.abort()
    return found + error_of(model, 1)


def test_a_rank_that_dies_is_an_error_with_a_type_on_the_others() -> None:
    assert on_ranks(WORLD, die, killed=1) == ["PeerError"]


def test_a_rank_that_aborts_ends_it_for_all() -> None:
    assert on_ranks(WORLD, abort) == ["PeerError"] * WORLD
