"""Calls of torch.distributed that a backend for the CPU answers, with what they leave.

``run_cases`` runs all of them on each rank, so that two backends can be compared.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
from torch import Tensor
from torch.distributed.checkpoint import state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

Case = Callable[[int], Any]
WORLD = 3
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
WHOLE = (torch.int8, torch.int32, torch.int64, torch.uint8)
COMPLEX = (torch.complex64, torch.complex128)
ALL = (*FLOATS, *WHOLE, torch.bool, *COMPLEX)
SHAPES = ((), (0,), (1,), (7,), (2, 3), (2, 0, 3))


def made(rank: int, dtype: torch.dtype, shape: tuple[int, ...] = (2, 3)) -> Tensor:
    """Small whole numbers: every sum is exact in every type."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) + rank) % 5).reshape(shape).to(dtype)


def reductions() -> Iterator[tuple[str, Case]]:
    """All reductions of all types that have them."""
    ops = {"sum": dist.ReduceOp.SUM, "product": dist.ReduceOp.PRODUCT}
    ordered = {"min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}
    bits = {
        "and": dist.ReduceOp.BAND, "or": dist.ReduceOp.BOR, "xor": dist.ReduceOp.BXOR,
    }  # fmt: skip
    for dtype in (*FLOATS, *WHOLE):
        more = bits if dtype in WHOLE else {}
        for name, op in (ops | ordered | more).items():
            yield f"all_reduce {name} {dtype}", _reducing(dtype, op)
    for dtype in FLOATS[:2]:
        for name, op in (ops | ordered).items():
            yield f"reduce {name} {dtype}", _reducing_to_one(dtype, op)
            yield f"reduce_scatter {name} {dtype}", _scattering(dtype, op)
    for dtype in COMPLEX:
        yield f"all_reduce sum {dtype}", _reducing(dtype, dist.ReduceOp.SUM)
    for shape in SHAPES:
        yield f"all_reduce {shape}", _reducing(torch.float32, dist.ReduceOp.SUM, shape)


def _reducing(dtype: torch.dtype, op: Any, shape: tuple[int, ...] = (2, 3)) -> Case:
    def case(rank: int) -> Any:
        dist.all_reduce(tensor := made(rank, dtype, shape), op=op)
        return tensor

    return case


def _reducing_to_one(dtype: torch.dtype, op: Any) -> Case:
    def case(rank: int) -> Any:
        dist.reduce(tensor := made(rank, dtype), dst=1, op=op)
        return tensor if rank == 1 else None

    return case


def _scattering(dtype: torch.dtype, op: Any) -> Case:
    def case(rank: int) -> Any:
        dist.reduce_scatter_tensor(
            part := torch.empty(2, dtype=dtype), made(rank, dtype).view(-1), op=op
        )
        return part

    return case


def moves() -> Iterator[tuple[str, Case]]:
    """What moves tensors without combining them, in every type."""
    for dtype in ALL:
        for how in (_broadcast, _all_gather, _gather, _scatter, _to_all, _around):
            if how is not _gather or dtype not in COMPLEX:  # gloo gathers none
                yield f"{how.__name__.strip('_')} {dtype}", _typed(how, dtype)
    for shape in SHAPES:
        yield f"broadcast {shape}", _typed(_broadcast, torch.float32, shape)
        yield f"all_gather {shape}", _typed(_all_gather, torch.float32, shape)


def _typed(how: Any, dtype: torch.dtype, shape: tuple[int, ...] = (2, 3)) -> Case:
    return lambda rank: how(rank, dtype, shape)


def _broadcast(rank: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Any:
    dist.broadcast(tensor := made(rank, dtype, shape), src=2)
    return tensor


def _all_gather(rank: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Any:
    rooms = [torch.zeros(shape, dtype=dtype) for _ in range(WORLD)]
    dist.all_gather(rooms, made(rank, dtype, shape))
    return rooms


def _gather(rank: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Any:
    rooms = [torch.zeros(shape, dtype=dtype) for _ in range(WORLD)]
    dist.gather(made(rank, dtype, shape), rooms if rank == 1 else None, dst=1)
    return rooms if rank == 1 else None


def _scatter(rank: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Any:
    parts = [made(each, dtype, shape) for each in range(WORLD)]
    dist.scatter(
        room := torch.zeros(shape, dtype=dtype), parts if rank == 0 else None, src=0
    )
    return room


def _to_all(rank: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Any:
    rooms = torch.zeros(3, 2, dtype=dtype)
    dist.all_to_all_single(rooms, made(rank, dtype, (3, 2)))
    return rooms


def _around(rank: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Any:
    """Each sends to the next one, all at once."""
    room = torch.zeros(shape, dtype=dtype)
    sent = dist.isend(made(rank, dtype, shape), (rank + 1) % WORLD)
    received = dist.irecv(room, (rank - 1) % WORLD)
    sent.wait()
    received.wait()
    return room


def strided(rank: int) -> Any:
    """Tensors whose elements do not lie in a row."""
    turned = made(rank, torch.float32, (3, 4)).t()
    dist.all_reduce(turned)
    rooms = [torch.zeros(4, 3).t() for _ in range(WORLD)]
    dist.all_gather(rooms, turned.contiguous().t().contiguous())
    return [turned, rooms]


def uneven(rank: int) -> Any:
    """Every rank has another length for each."""
    splits = [rank + to + 1 for to in range(WORLD)]
    room = torch.zeros(sum(splits))
    whole = torch.arange(float(sum(splits))) + 100 * rank
    dist.all_to_all_single(room, whole, splits, splits)
    return room


def batched(rank: int) -> Any:
    """Both directions of each pair in one batch, receiving first."""
    others = [each for each in range(WORLD) if each != rank]
    rooms = {each: torch.zeros(1000) for each in others}
    ops = [dist.P2POp(dist.irecv, rooms[each], each) for each in others]
    ops += [
        dist.P2POp(dist.isend, torch.full((1000,), float(10 * rank + to)), to)
        for to in others
    ]
    for each in dist.batch_isend_irecv(ops):
        each.wait()
    return [rooms[each] for each in others]


def large_both_ways(rank: int) -> Any:
    """More than fits on the way, from everybody to everybody."""
    others = [each for each in range(WORLD) if each != rank]
    rooms = [torch.zeros(1 << 20) for _ in others]
    sent = [dist.isend(torch.full((1 << 20,), float(rank)), to) for to in others]
    for room, each in zip(rooms, others, strict=True):
        dist.recv(room, each)
    for each in sent:
        each.wait()
    return [room[[0, -1]] for room in rooms]


def tagged(rank: int) -> Any:
    """Messages by name."""
    room = torch.zeros(2)
    if rank == 0:
        dist.send(torch.ones(2), 1, tag=7)
        dist.send(torch.zeros(2), 1, tag=8)
    elif rank == 1:
        dist.recv(room, 0, tag=7)
        dist.recv(torch.ones(2), 0, tag=8)
    return room


def among_collectives(rank: int) -> Any:
    """Messages between collectives that are not waited for."""
    first = dist.all_reduce(total := torch.ones(3), async_op=True)
    room = torch.zeros(1)
    if rank == 0:
        sent = dist.isend(torch.ones(1), 2)
    if rank == 2:
        received = dist.irecv(room, 0)
    second = dist.all_reduce(more := torch.ones(3), async_op=True)
    for each in (
        first,
        second,
        *([sent] if rank == 0 else [received] if rank == 2 else []),
    ):
        each.wait()
    return [total, more, room]


def in_a_callback(rank: int) -> Any:
    """A collective that is asked for, and waited for, in the callback of another."""
    more = torch.ones(2)
    first = dist.all_reduce(torch.ones(2), async_op=True)
    chained = first.get_future().then(
        lambda done: dist.all_reduce(more) or done.value()
    )
    chained.wait()
    return more


def in_a_chain(rank: int) -> Any:
    """Callbacks of callbacks, each with a collective."""
    more = torch.ones(2)

    def again(done: Any) -> Any:
        future = dist.all_reduce(more, async_op=True).get_future()
        return future.wait()

    future = dist.all_reduce(torch.ones(1), async_op=True).get_future()
    future.then(again).then(again).wait()
    return more


def part_of_them(rank: int) -> Any:
    """A group of some ranks."""
    group = dist.new_group([0, 2])
    tensor = made(rank, torch.float32)
    if rank != 1:
        dist.all_reduce(tensor, group=group)
        dist.broadcast(tensor, src=2, group=group)
    return tensor


def by_functions(rank: int) -> Any:
    """Functional collectives."""
    tensor = made(rank, torch.float32, (3, 2))
    group = dist.group.WORLD
    return [
        functional.all_reduce(tensor, "sum", group) + 0,
        functional.all_gather_tensor(tensor, 0, group) + 0,
        functional.reduce_scatter_tensor(tensor, "sum", 0, group) + 0,
        functional.all_to_all_single(tensor, None, None, group) + 0,
        functional.broadcast(tensor, 1, group) + 0,
    ]


def sparse(rank: int) -> Any:
    """Sparse gradients, as embeddings have them."""
    where = torch.tensor([[rank, 4]])
    tensor = torch.sparse_coo_tensor(where, torch.ones(2, 3), size=(5, 3))
    dist.all_reduce(tensor)
    return tensor.to_dense()


def coalesced(rank: int) -> Any:
    """Several tensors in one call."""
    tensors = [made(rank, torch.float32), made(rank, torch.float32, (4,))]
    dist.all_reduce_coalesced(tensors)
    return tensors


def objects(rank: int) -> Any:
    """All object collectives."""
    said: Any = {"rank": rank, "parts": [rank, (rank, None)], "kind": torch.float16}
    everybody: list[Any] = [None] * WORLD
    dist.all_gather_object(everybody, said)
    at_one: list[Any] | None = [None] * WORLD if rank == 1 else None
    dist.gather_object(said, at_one, dst=1)
    told: list[Any] = [said, "more"] if rank == 2 else [None, None]
    dist.broadcast_object_list(told, src=2)
    room: list[Any] = [None]
    dist.scatter_object_list(room, [0, "one", b"two"] if rank == 0 else None, src=0)
    sent: list[Any] = [said] if rank == 0 else [None]
    if rank == 0:
        dist.send_object_list(sent, dst=1)
    elif rank == 1:
        dist.recv_object_list(sent, src=0)
    return [everybody, at_one, told, room, sent]


def states(rank: int) -> Any:
    """A whole state that one rank has loaded, into the shards of all."""
    torch.manual_seed(rank)
    model = torch.nn.Linear(6, 3)
    fully_shard(model)
    whole = state_dict.StateDictOptions(full_state_dict=True, cpu_offload=True)
    found = state_dict.get_model_state_dict(model, options=whole)
    told = state_dict.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    changed = {
        name: each + 1 for name, each in found.items()
    }  # of the first rank alone
    state_dict.set_model_state_dict(model, changed, options=told)
    again = state_dict.get_model_state_dict(model, options=whole)
    return list(again.values())


def by_functions_with_gradients(rank: int) -> Any:
    """What torch.distributed.nn differentiates."""
    found: list[Any] = []
    for call in (
        differentiable.all_reduce,
        lambda own: torch.cat(differentiable.all_gather(own)),
        lambda own: differentiable.broadcast(own, 0),
        lambda own: differentiable.reduce_scatter(torch.empty(2), [own] * WORLD),
        lambda own: torch.cat(differentiable.gather(own, 0)),
        lambda own: differentiable.scatter([own] * WORLD, 0),
    ):
        own = torch.tensor([1.0 + rank, 2.0], requires_grad=True)
        made = call(own)
        made.square().sum().backward()
        found += [made.detach(), own.grad]
    return found


def numbers(rank: int) -> Any:
    """Numbers of other kinds, as scripts' measures are."""
    everybody: list[Any] = [None] * WORLD
    said = [np.float32(rank), np.arange(6).reshape(2, 3), complex(1, rank), 2**70]
    dist.all_gather_object(everybody, said)
    return everybody


def groups_of_their_own(rank: int) -> Any:
    """Sub-groups in the other ways of making them, and messages within one."""
    alone, _ = dist.new_subgroups(1)
    dist.all_reduce(own := made(rank, torch.float32), group=alone)
    pair = dist.new_group([0, 2], use_local_synchronization=True) if rank != 1 else None
    room = torch.full((2,), float(rank))
    if rank == 0:
        dist.send(room, group=pair, group_dst=1)
    if rank == 2:
        dist.recv(room, group=pair, group_src=0)
    mesh = init_device_mesh("cpu", (WORLD,), mesh_dim_names=("all",))
    dist.all_reduce(total := made(rank, torch.float32), group=mesh.get_group())
    return [own, room, total, dist.get_process_group_ranks(mesh.get_group())]


def in_one_batch(rank: int) -> Any:
    """Collectives that a manager of torch's gathers."""
    first, second = made(rank, torch.float32), made(rank, torch.float32, (3,))
    with dist._coalescing_manager(async_ops=True) as manager:
        dist.all_reduce(first)
        dist.all_reduce(second)
    manager.wait()
    return [first, second]


def from_threads(rank: int) -> Any:
    """A thread for each of two groups."""
    group = dist.new_group(list(range(WORLD)))
    tensors = [torch.ones(10), torch.ones(10)]
    threads = [
        threading.Thread(target=dist.all_reduce, args=(tensor,), kwargs={"group": each})
        for tensor, each in zip(tensors, (None, group), strict=True)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return tensors


def waits(rank: int) -> Any:
    """Ways to wait."""
    work = dist.all_reduce(tensor := torch.ones(2), async_op=True)
    work.wait(timedelta(seconds=300))
    future = dist.all_reduce(more := torch.ones(2), async_op=True).get_future()
    future.wait()
    dist.barrier()
    said = [work.is_success(), work.exception(), work.result()]
    return [tensor, more, work.is_completed(), *said]


def all_cases() -> dict[str, Case]:
    """Every case by its name."""
    more = (
        strided, uneven, batched, large_both_ways, tagged, among_collectives,
        in_a_callback, in_a_chain, part_of_them, by_functions, sparse, coalesced,
        objects, numbers, states, by_functions_with_gradients, groups_of_their_own, in_one_batch,
        from_threads, waits,
    )  # fmt: skip
    named = {each.__name__: each for each in more}
    return {**dict(reductions()), **dict(moves()), **named}


def run_cases(rank: int) -> dict[str, Any]:
    """What each case leaves on this rank; an error's type, if there was one."""
    warnings.simplefilter("ignore")  # torch's older names
    found = {}
    for name, case in all_cases().items():
        try:
            found[name] = _plain(case(rank))
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
            if dist.get_backend() == "sealift":
                break  # the group has ended
    return found


def _plain(value: Any) -> Any:
    """Of tensors, type, shape and elements."""
    if isinstance(value, Tensor):
        return [str(value.dtype), list(value.shape), value.tolist()]
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value)
