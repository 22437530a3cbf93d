"""Torch's own programs over a sealed group, in real processes."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from sealift.errors import SealiftError
from sealift.integrations.torchgroup import MAX_TOLD_BYTES, SealedProcessGroup
from tests.sim.torchranks import on_ranks

pytestmark = pytest.mark.distributed
WORLD = 3
Scale = Callable[[torch.Tensor], torch.Tensor]
STEPS = 3


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))


def batch(rank: int, step: int) -> torch.Tensor:
    made = torch.Generator().manual_seed(rank * 100 + step)
    return torch.randn(16, 64, generator=made)


def weights(trained: nn.Module) -> list[bytes]:
    return [each.detach().numpy().tobytes() for each in trained.parameters()]


def train_ddp(rank: int, hook: Any = None) -> list[bytes]:
    parallel = nn.parallel.DistributedDataParallel(model())
    if hook is not None:
        parallel.register_comm_hook(None, hook)
    descent = torch.optim.SGD(parallel.parameters(), lr=0.1)
    for step in range(STEPS):
        descent.zero_grad()
        parallel(batch(rank, step)).square().mean().backward()
        descent.step()
    return weights(parallel.module)


def train_hooked(rank: int) -> list[bytes]:
    return train_ddp(rank, allreduce_hook)


def train_here(scale: Scale) -> list[bytes]:
    """The same in one process: gradients scaled, then added in the order of ranks."""
    alone = model()
    descent = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(STEPS):
        total: list[torch.Tensor] = []
        for rank in range(WORLD):
            descent.zero_grad()
            alone(batch(rank, step)).square().mean().backward()
            parts = [scale(each.grad) for each in alone.parameters()]  # type: ignore[arg-type]
            total = (
                [a + b for a, b in zip(total, parts, strict=True)] if total else parts
            )
        for each, grad in zip(alone.parameters(), total, strict=True):
            each.grad = grad
        descent.step()
    return weights(alone)


@pytest.mark.parametrize(
    ("train", "scale"),
    [
        (train_ddp, lambda grad: grad * (1 / WORLD)),  # as DDP itself does
        (train_hooked, lambda grad: grad / WORLD),
    ],
)
def test_ddp_trains_bit_for_bit_as_one_process(
    train: Callable[[int], list[bytes]], scale: Scale
) -> None:
    torch.set_num_threads(1)
    assert on_ranks(WORLD, train) == [train_here(scale)] * WORLD


def calls(rank: int) -> dict[str, Any]:
    warnings.simplefilter("ignore")  # torch's older names
    found: dict[str, Any] = {}
    mine = torch.full((2, 2), float(rank + 1))
    dist.all_reduce(total := mine.clone())
    found["sum"] = total.tolist()
    dist.all_reduce(mean := mine.clone(), op=dist.ReduceOp.AVG)
    found["mean"] = mean.tolist()
    counts = torch.tensor([rank**2, -(rank**2)])
    dist.all_reduce(counts, op=dist.ReduceOp.AVG)  # Lightning averages whole numbers
    found["mean of whole numbers"] = counts.tolist()
    dist.all_reduce(most := mine.to(torch.bfloat16), op=dist.ReduceOp.MAX)
    found["max of bfloat16"] = most.tolist()
    gathered = [torch.empty(2, 2) for _ in range(WORLD)]
    dist.all_gather(gathered, mine)
    found["gathered"] = [each[0, 0].item() for each in gathered]
    whole, part = torch.empty(4 * WORLD), torch.empty(4)
    dist.all_gather_into_tensor(whole, mine.view(-1))
    dist.reduce_scatter_tensor(part, whole)
    found["whole"], found["part"] = whole.tolist(), part.tolist()
    dist.reduce_scatter(part, [torch.full((4,), float(to)) for to in range(WORLD)])
    found["scattered"] = part.tolist()
    dist.broadcast(told := mine.t().clone(), src=1)
    found["told"] = told.tolist()
    waiting = dist.all_reduce(later := mine.clone(), async_op=True)
    waiting.wait()
    found["later"] = later.tolist()
    dist.barrier()
    return found


def mistakes(rank: int) -> list[str]:
    """What each call fails with; the first ends the group, on some rank before others."""
    calls = (_pickled, _odd_reduction, _ordinary)
    return [_error(call) for call in calls]


def _refused_alone(rank: int) -> list[str]:
    """Whoever went on after a refusal would be one collective behind the others."""
    return [_error(call) for call in (*[_odd_type] * (rank == 0), _ordinary)]


def _odd_type() -> None:
    dist.all_reduce(torch.ones(2).to(torch.float8_e4m3fn))


def _ordinary() -> None:
    dist.all_reduce(torch.ones(2))


def _pickled() -> None:
    dist.all_gather_object([None] * WORLD, {"a": _pickled})


HUGE = 1 << 62
LIES = [
    *((kind, HUGE) for kind in ("broadcast", "gather", "scatter", "batch", "receive")),
    *(("all_gather", size) for size in (HUGE, MAX_TOLD_BYTES, -1)),
]


def _lies(rank: int) -> list[str]:
    """Codes of what honest ranks raise where rank 0 tells a size of an object that it has not.

    Before, as a script's own numbers are no sizes: such numbers, and objects that are there.
    """
    distributed_c10d.broadcast(told := torch.tensor([HUGE, -1]), src=0)
    dist.all_gather_object(objects := [None] * WORLD, rank)
    assert (told.tolist(), objects) == ([HUGE, -1], [*range(WORLD)])
    return [_lie(rank, kind, size, dist.new_group()) for kind, size in LIES]


def _lie(rank: int, kind: str, size: int, group: Any) -> str:
    told, several = torch.tensor([size]), [torch.zeros(1, dtype=torch.int64)] * WORLD
    try:
        if rank == 0 and kind in ("broadcast", "scatter"):
            dist.broadcast(told, src=0, group=group)
        elif rank == 0 and kind in ("all_gather", "gather"):
            dist.all_gather(several, told, group=group)
        elif rank == 0:
            sent = [dist.isend(told, dst, group=group) for dst in range(1, WORLD)]
            [each.wait() for each in sent]
        elif kind == "broadcast":
            dist.broadcast_object_list([None], src=0, group=group)
        elif kind == "scatter":
            dist.scatter_object_list([None], None, src=0, group=group)
        elif kind == "all_gather":
            dist.all_gather_object([None] * WORLD, "x", group=group)
        elif kind == "gather":
            into = [None] * WORLD if rank == 1 else None
            dist.gather_object("x", into, dst=1, group=group)
        else:
            in_batch = kind == "batch"
            dist.recv_object_list([None], src=0, group=group, use_batch=in_batch)
        dist.all_reduce(told, group=group)  # the liar hears that the group has ended
    except SealiftError as error:
        return error.code
    return ""


def _odd_reduction() -> None:
    dist.all_reduce(torch.ones(2), op=dist.ReduceOp.BXOR)


def _error(call: Callable[[], None]) -> str:
    try:
        call()
    except Exception as error:
        return str(error)
    return ""


def test_lists_of_a_collective_are_those_of_its_call() -> None:
    given: list[Any] = []
    group: Any = SimpleNamespace(
        _changed=threading.Condition(), _receiving=[], _queue=lambda _, whole: whole
    )
    outputs, inputs = [torch.zeros(1)], [torch.ones(1)]

    def work(*lists: Any) -> None:
        given.extend(lists)

    whole: Any = SealedProcessGroup._begin(group, outputs, work, inputs)
    outputs.clear()
    inputs.clear()
    whole(lambda _: None)
    assert [len(each) for each in given] == [1, 1]


def test_torchs_collectives() -> None:
    for rank, found in enumerate(on_ranks(WORLD, calls)):
        assert found["sum"] == [[6.0, 6.0], [6.0, 6.0]]
        assert found["mean"] == [[2.0, 2.0], [2.0, 2.0]]
        assert found["mean of whole numbers"] == [1, -1]
        assert found["max of bfloat16"] == [[3.0, 3.0], [3.0, 3.0]]
        assert found["gathered"] == [1.0, 2.0, 3.0]
        assert found["whole"] == [1.0] * 4 + [2.0] * 4 + [3.0] * 4
        assert found["part"] == [3.0 * (rank + 1)] * 4
        assert found["scattered"] == [3.0 * rank] * 4
        assert found["told"] == [[2.0, 2.0], [2.0, 2.0]]
        assert found["later"] == found["sum"]


def test_mistakes_are_refused() -> None:
    for objects, odd, ordinary in on_ranks(WORLD, mistakes):
        assert "type function" in objects
        assert "no bits_xor of float32" in odd
        assert ordinary


def test_a_size_of_an_object_that_a_rank_invents_makes_no_room() -> None:
    for codes in on_ranks(WORLD, _lies)[1:]:
        assert codes == ["object-too-large"] * len(LIES)


def test_a_refusal_on_one_rank_ends_the_group_on_all() -> None:
    assert all(map(all, on_ranks(WORLD, _refused_alone)))
