"""The sealed process group beside gloo, and torch's own programs that need all of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.sim.torchcases import WORLD, all_cases, run_cases
from tests.sim.torchranks import on_ranks

pytestmark = [pytest.mark.distributed, pytest.mark.long]
MANY = 150


def test_every_call_leaves_what_gloo_leaves() -> None:
    gloo, sealed = (on_ranks(WORLD, run_cases, backend=b) for b in ("gloo", "sealift"))
    assert len(all_cases()) > MANY
    assert sealed == gloo


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))


def train(model: nn.Module, steps: int = 6) -> list[float]:
    """Its weights' sums after some steps."""
    descent = torch.optim.SGD(model.parameters(), lr=0.1)
    made = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(steps):
        descent.zero_grad()
        model(torch.randn(8, 16, generator=made)).square().mean().backward()
        descent.step()
    return [
        float(getattr(each, "full_tensor", each.detach)().sum())
        for each in model.parameters()
    ]


def with_buffers_of_bytes(rank: int) -> Any:
    model = network()
    model.register_buffer("switch", torch.tensor([1], dtype=torch.uint8))
    return train(DistributedDataParallel(model))


def with_hooks_that_ask_again(rank: int) -> Any:
    model = DistributedDataParallel(network(), bucket_cap_mb=0.0001)
    state = power.PowerSGDState(None, 1, start_powerSGD_iter=2)
    model.register_comm_hook(state, power.powerSGD_hook)
    return train(model)


def compiled(rank: int) -> Any:
    return train(torch.compile(DistributedDataParallel(network()), backend="aot_eager"))


def with_sharded_states(rank: int) -> Any:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(network())
    descent = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
    model(torch.ones(2, 16)).sum().backward()
    descent.step()
    descent.consolidate_state_dict(0)
    return len(descent.state_dict()["state"]) if rank == 0 else None


def sharded(model: nn.Module, **options: Any) -> Any:
    """The model, each layer and the whole as FSDP2 shards them."""
    for layer in (*model, model):
        fully_shard(
            layer, mesh=init_device_mesh("cpu", (dist.get_world_size(),)), **options
        )
    return model


def with_shards(rank: int) -> Any:
    return train(sharded(network()))


def with_shards_in_bfloat16(rank: int) -> Any:
    return train(sharded(network(), mp_policy=MixedPrecisionPolicy(torch.bfloat16)))


def with_shards_and_accumulation(rank: int) -> Any:
    model = sharded(network())
    model.set_requires_gradient_sync(False)
    model(torch.ones(2, 16)).sum().backward()
    model.set_requires_gradient_sync(True)
    return train(model)


def compiled_with_shards(rank: int) -> Any:
    return train(torch.compile(sharded(network()), backend="aot_eager"))


def copied(rank: int) -> Any:
    return train(DistributedDataParallel(network()))


def test_hooks_that_ask_again_leave_all_ranks_alike() -> None:
    """Over gloo this hangs: its one thread waits for itself."""
    first, second = on_ranks(2, with_hooks_that_ask_again)
    assert first == second
    assert all(map(math.isfinite, first))


@pytest.mark.parametrize(
    "work",
    [
        with_buffers_of_bytes, compiled, with_sharded_states, with_shards, with_shards_in_bfloat16,
        with_shards_and_accumulation, compiled_with_shards,
    ],
)  # fmt: skip
def test_programs_leave_what_they_leave_over_gloo(work: Any) -> None:
    sealed = on_ranks(2, work)
    assert sealed == on_ranks(2, work, backend="gloo")
    assert sealed[0]


def test_four_ranks_with_shards_train_what_four_copies_train() -> None:
    """Both add gradients in the order of ranks; gloo has another order for each."""
    assert on_ranks(4, with_shards) == on_ranks(4, copied)


class Checkpoints:
    """Saves and loads models of both kinds below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __call__(self, rank: int) -> bool:
        whole = DistributedDataParallel(network())
        sharded = network()
        mesh = init_device_mesh("cpu", (2,))
        fully_shard(sharded, mesh=mesh)
        train(sharded, 1)
        for name, model in (("whole", whole), ("sharded", sharded)):
            states = model.state_dict()
            kept = {key: each.clone() for key, each in states.items()}
            place = f"{self.folder}/{name}"
            checkpoint.save(states, checkpoint_id=place)
            with torch.no_grad():
                for each in model.parameters():
                    each.zero_()
            checkpoint.load(states, checkpoint_id=place)
            now = model.state_dict()
            if not all(
                torch.equal(_local(now[key]), _local(kept[key])) for key in kept
            ):
                return False
        return True


def _local(tensor: Any) -> torch.Tensor:
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return local


def test_torchs_checkpoints_save_and_load(tmp_path: Path) -> None:
    assert on_ranks(2, Checkpoints(tmp_path)) == [True, True]
