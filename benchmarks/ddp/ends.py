"""One rank of measured training: a model under torch's DDP, once for every way to reduce.

All ways share one set of weights; each has gradients and buckets of its own, so that its
iterations can take turns with the others'. ``alone`` computes and sends nothing: what an
iteration takes beyond it is exposed communication. One thread of arithmetic a rank.
"""

from __future__ import annotations

import copy
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from benchmarks.channel import pipe_over
from benchmarks.ddp.models import MODELS
from benchmarks.harness import Answer, End
from benchmarks.ranks import Ring, carry, start_gloo
from sealift.collective.announcement import Reduction
from sealift.collective.group import SealedGroup
from sealift.collective.peer import Wire
from sealift.collective.planner import plan_group
from sealift.collective.tensors import Array
from sealift.demo.digits.recipe import DigitReader
from sealift.errors import require_value
from sealift.integrations.torchgroup import SealedProcessGroup
from sealift.train.loop.averaging import Contribution, demand_same_form
from sealift.train.sandboxed.torchstate import take_state

_RATE: Final = 1e-3


class RingGroup:
    """The published way, as far as a ``SealedProcessGroup`` asks for it."""

    def __init__(self, rank: int, wires: dict[int, Wire]) -> None:
        self.rank, self.world = rank, len(wires) + 1
        onward = wires[(rank + 1) % self.world]
        self._ring = Ring(rank, self.world, onward, wires[(rank - 1) % self.world])

    def all_reduce(self, tensor: Array, reduction: Reduction) -> None:
        """Sums."""
        if reduction is not Reduction.SUM:
            raise ValueError("this ring makes sums only")
        self._ring.all_reduce(tensor.reshape(-1))

    def abort(self) -> None:
        """Nothing: the wires are ended with the process."""


class TrainingEnd(End):
    """A rank.

    Attributes:
        groups: A process group for each way; None is torch's own.
    """

    def __init__(self, rank: str, world: str, port: str) -> None:
        self._rank, self._world = int(rank), int(world)
        self._sealed: dict[str, SealedGroup] = {}
        self._groups: dict[str, SealedProcessGroup | None] = {"gloo": None}
        self._closing: list[Callable[[], None]] = []
        self._ddps: dict[str, DistributedDataParallel] = {}
        start_gloo(int(port), self._rank, self._world)

    def join(self, *socks: socket.socket, arm: str, kind: str, seed: str) -> None:
        """A way over a socket to each other rank; ``A`` is the published one."""
        wires = carry(
            self._rank,
            socks,
            kind,
            lambda carrier, opens: pipe_over(carrier, seed, opens=opens),
        )
        self._closing += [wire.abort for wire in wires.values()]
        if arm == "A":
            group: Any = RingGroup(self._rank, wires)
        else:
            group = self._sealed[arm] = SealedGroup(self._rank, wires)
        self._groups[arm] = SealedProcessGroup(group)

    def plan(self, arm: str, gradient_bytes: int) -> Answer:
        """What the ranks choose for a model."""
        plan = plan_group(self._sealed[arm], gradient_bytes, time.perf_counter)
        return {"bucket_bytes": plan.bucket_bytes, "why": plan.why}

    def load(self, model: str, ways: dict[str, tuple[str, float]]) -> Answer:
        """Make a model, under DDP for each way: its group, and MiB of a bucket."""
        self._ddps.clear()
        torch.manual_seed(0)
        weights = MODELS[model].make()
        self._batch = MODELS[model].batch(self._rank)
        for way, (arm, cap_mib) in ways.items():
            self._ddps[way] = self._ddp(weights, arm, cap_mib)
        return {
            "millions": round(sum(p.numel() for p in weights.parameters()) / 1e6, 1)
        }

    def _ddp(
        self, weights: nn.Module, arm: str, cap_mib: float
    ) -> DistributedDataParallel:
        own = copy.deepcopy(weights)
        for mine, shared in zip(own.parameters(), weights.parameters(), strict=True):
            mine.data = shared.data
        made = DistributedDataParallel(
            own,
            bucket_cap_mb=cap_mib,
            gradient_as_bucket_view=True,
            forward_sync_buffers=False,
        )
        if self._groups[arm] is not None:
            made.register_comm_hook(self._groups[arm], allreduce_hook)
        return made

    def iterate(self, way: str) -> Answer:
        """Seconds of an iteration: forward, backward with all reductions, the step."""
        alone = way == "alone"
        model = self._ddps["gloo" if alone else way]
        inputs, targets = self._batch
        model.zero_grad(set_to_none=False)
        dist.barrier()
        began = time.perf_counter()
        with model.no_sync() if alone else nullcontext():
            loss = functional.cross_entropy(model(inputs), targets)
            loss.backward()
        with torch.no_grad():
            for each in model.parameters():
                each.add_(require_value(each.grad), alpha=-_RATE)
        return {"seconds": time.perf_counter() - began, "loss": float(loss.detach())}

    def replay(self, arm: str, sizes: Sequence[int]) -> Answer:
        """Seconds of buckets one after the other, without a model."""
        memory = torch.zeros(max(sizes) // 4)  # sums of ones would grow for ever
        memory.fill_(0.0)  # in pages of its own
        group = self._groups[arm] or dist.group.WORLD
        dist.barrier()
        began = time.perf_counter()
        for size in sizes:
            dist.all_reduce(memory[: size // 4], group=group)
        return {"seconds": time.perf_counter() - began}

    def round(self, arm: str) -> Answer:
        """Seconds of a round besides training: the mean of everybody's digits model."""
        torch.manual_seed(self._rank)
        model = DigitReader()
        optimizer = torch.optim.Adam(model.parameters())
        pixels = torch.rand(32, 64)
        before = take_state(model, optimizer, 0, _call)
        model(pixels).square().mean().backward()
        optimizer.step()
        group = self._sealed[arm]
        group.barrier()
        began = time.perf_counter()
        after = take_state(model, optimizer, 1, _call)
        mine = Contribution(before, after, 1 / self._world)
        forms = group.exchange(mine.form.raw)
        demand_same_form([type(mine.form)(each) for each in forms])
        for piece in mine.pieces():
            how = Reduction.MAX if piece.counts else Reduction.SUM
            group.all_reduce(piece.numbers, how)
            mine.put(piece)
        mine.result(1)
        return {"seconds": time.perf_counter() - began, "nbytes": len(after.tensors)}

    def close(self) -> None:
        """Hang up."""
        self._ddps.clear()
        for each in self._closing:
            each()


def _call(what: Callable[..., Any], *words: Any) -> Any:
    return what(*words)
