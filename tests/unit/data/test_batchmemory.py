"""Memory of batches: used again when nothing refers to it, and never before."""

from __future__ import annotations

import copy
import ctypes
import gc
import io
import mmap
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sealift.data import SealedDataLoader
from sealift.data.loader import batches as batchmemory
from sealift.data.loader.batches import SMALL_BYTES, BatchMemory
from tests.sim.sealed_shards import Shards, seal_shards

ROWS, ROW = 16, 128 << 10  # a batch of 2 MiB


@pytest.fixture
def memory() -> Iterator[BatchMemory]:
    memory = BatchMemory()
    memory.work()
    yield memory
    memory.close()


def filled(memory: BatchMemory, value: int, rows: int = ROWS) -> Tensor:
    return memory.empty((rows, ROW), torch.uint8).fill_(value)


def seen(tensor: Tensor) -> set[int]:
    return set(tensor.flatten()[:: 64 << 10].tolist())


def test_memory_comes_again(memory: BatchMemory) -> None:
    first = filled(memory, 1)
    place = first.data_ptr()
    second = filled(memory, 2)
    assert second.data_ptr() != place
    del first
    assert memory.idle_bytes == ROWS * ROW
    assert filled(memory, 3).data_ptr() == place
    assert seen(second) == {2}


def saved_for_backward(tensor: Tensor) -> Any:
    weight = torch.ones((), dtype=torch.float32, requires_grad=True)
    loss = (tensor.view(torch.float32) * weight).sum()
    return loss, weight


def gradient_sees(kept: Any) -> set[int]:
    loss, weight = kept
    loss.backward()
    value = weight.grad / (ROWS * ROW / 4)
    return set(value.view(1).view(torch.uint8).tolist())


def as_read(kept: Any) -> set[int]:
    return set(np.frombuffer(kept, dtype=np.uint8).tolist())


def _in_cycle(tensor: Tensor) -> list[Any]:
    made: list[Any] = [tensor]
    made.append(made)
    return made


KEEPERS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], set[int]]]] = {
    "itself": (lambda t: t, seen),
    "a row": (lambda t: t[3], seen),
    "another view": (lambda t: t.T, seen),
    "detached": (lambda t: t.detach(), seen),
    "another dtype": (lambda t: t.view(torch.int32), lambda t: seen(t.view(torch.uint8))),
    "numpy": (lambda t: t.numpy(), lambda a: seen(torch.from_numpy(a))),
    "a view of numpy": (lambda t: t.numpy()[1:, ::2], lambda a: set(a.ravel().tolist())),
    "a memoryview": (lambda t: memoryview(t.numpy()[0]), as_read),
    "the storage": (lambda t: t.untyped_storage(), lambda s: set(s[:100].tolist())),
    "dlpack": (torch.utils.dlpack.to_dlpack, lambda c: seen(torch.from_dlpack(c))),
    "numpy's dlpack": (np.from_dlpack, lambda a: set(a.ravel().tolist())),
    "a graph": (saved_for_backward, gradient_sees),
    "a cycle": (_in_cycle, lambda c: seen(c[0])),
}  # fmt: skip


@pytest.mark.parametrize("name", KEEPERS)
def test_whatever_refers_to_it_keeps_it(memory: BatchMemory, name: str) -> None:
    keep, look = KEEPERS[name]
    tensor = filled(memory, 0x3F)  # a number, also as float32
    kept = keep(tensor)
    del tensor
    gc.collect()
    for _ in range(20):
        assert seen(filled(memory, 9)) == {9}
    assert look(kept) == {0x3F}
    del kept
    gc.collect()
    assert memory.idle_bytes == 2 * ROWS * ROW  # and when it is gone it came back


def test_an_address_keeps_nothing(memory: BatchMemory) -> None:
    """Control: the same memory is used again, so the tests above could fail."""
    tensor = filled(memory, 1)
    address = tensor.data_ptr()
    del tensor
    other = filled(memory, 9)
    assert ctypes.string_at(address, 4) == b"\x09" * 4
    assert seen(other) == {9}


def test_what_is_revived_while_it_dies_is_alive(memory: BatchMemory) -> None:
    """The collector calls weak references of a cycle before its finalizers."""
    revived: list[Tensor] = []

    class Owner:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor, self.itself = tensor, self

        def __del__(self) -> None:
            revived.append(self.tensor)

    Owner(filled(memory, 1))
    gc.collect()
    assert len(revived) == 1
    other = filled(memory, 9)
    assert (seen(revived[0]), seen(other)) == ({1}, {9})


def test_copies_are_copies(memory: BatchMemory) -> None:
    tensor = filled(memory, 1)
    saved = io.BytesIO()
    torch.save(tensor, saved)
    assert len(saved.getvalue()) < ROWS * ROW + 4096
    shared = filled(memory, 2).share_memory_()
    copies = [copy.deepcopy(tensor), torch.cat([tensor])]
    tensor.fill_(5)
    assert [seen(each) for each in copies] == [{1}, {1}]
    filled(memory, 9)
    assert shared.is_shared()
    assert seen(shared) == {2}


def test_what_is_idle_is_bounded() -> None:
    memory = BatchMemory(most_idle_bytes=3 * ROWS * ROW)
    memory.work()
    held = [filled(memory, number) for number in range(10)]
    assert [seen(each) for each in held] == [{number} for number in range(10)]
    held.clear()
    assert memory.idle_bytes == 3 * ROWS * ROW


def contents(memory: BatchMemory) -> list[bool]:
    return [any(bytes(each)) for each in memory._idle]


def test_idle_memory_holds_no_rows_between_epochs(memory: BatchMemory) -> None:
    late, first = filled(memory, 1), filled(memory, 2)
    del first
    assert contents(memory) == [True]  # control: while batches come, it does
    memory.rest()
    assert contents(memory) == [False]
    assert seen(late) == {1}  # nobody takes it from its holder
    del late
    assert contents(memory) == [False, False]
    memory.work()
    filled(memory, 3)
    assert True in contents(memory)


def test_a_closed_one_keeps_nothing(memory: BatchMemory) -> None:
    late, first = filled(memory, 1), filled(memory, 2)
    del first
    memory.close()
    memory.close()
    assert memory.idle_bytes == 0
    assert seen(late) == {1}
    del late
    assert memory.idle_bytes == 0


def test_loaders_share_no_memory() -> None:
    one, other = BatchMemory(), BatchMemory()
    one.work()
    other.work()
    place = filled(one, 1).data_ptr()
    assert filled(other, 2).data_ptr() != place
    assert one.idle_bytes == other.idle_bytes == ROWS * ROW


def test_a_short_batch_uses_a_whole_ones_memory(memory: BatchMemory) -> None:
    def batch(rows: int) -> Tensor:
        return memory.empty((rows, ROW), torch.uint8, most_rows=16)

    place = batch(16).data_ptr()
    short = batch(9)
    assert (short.data_ptr(), tuple(short.shape)) == (place, (9, ROW))
    assert short.untyped_storage().nbytes() == 9 * ROW
    del short
    assert batch(7).data_ptr() != place  # else it would keep twice its size alive
    assert not memory.empty((1, ROW), torch.uint8).numel() * 2 > SMALL_BYTES
    assert memory.idle_bytes == 16 * ROW


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
     torch.float16, torch.float32, torch.float64],
)  # fmt: skip
def test_it_is_like_any_other_tensor(memory: BatchMemory, dtype: torch.dtype) -> None:
    shape = (2, 3, SMALL_BYTES)
    tensor, other = memory.empty(shape, dtype), torch.empty(shape, dtype=dtype)
    for name in ("dtype", "shape", "device", "requires_grad", "_base", "is_leaf"):
        assert getattr(tensor, name) == getattr(other, name)
    assert tensor.stride() == other.stride()
    assert tensor.data_ptr() % 64 == 0
    tensor.zero_()


def test_without_a_mapping_it_is_torchs(
    memory: BatchMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_: Any, **__: Any) -> mmap.mmap:
        raise OSError

    monkeypatch.setattr(batchmemory.mmap, "mmap", none_left)
    assert seen(filled(memory, 4)) == {4}
    assert memory.idle_bytes == 0


def test_tensors_that_live_at_once_lie_apart_in_any_thread(memory: BatchMemory) -> None:
    wrong: list[int] = []

    def churn(value: int) -> None:
        chance = np.random.default_rng(value)
        held: list[Tensor] = []
        for _ in range(60):
            held.append(filled(memory, value, rows=int(chance.choice((8, 16)))))
            if len(held) > 3:
                held.pop(chance.integers(4))
            if any(seen(each) != {value} for each in held):
                wrong.append(value)

    threads = [threading.Thread(target=churn, args=(value,)) for value in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


class Taken(deque[mmap.mmap]):
    """Another thread takes all of it as soon as it was counted."""

    def __len__(self) -> int:
        found = super().__len__()
        self.clear()
        return found


def test_what_another_thread_took_meanwhile_is_not_missed(memory: BatchMemory) -> None:
    filled(memory, 1)
    memory._idle = Taken(memory._idle)
    assert seen(filled(memory, 2)) == {2}
    memory._idle = Taken([mmap.mmap(-1, 4096)])
    memory.rest()
    memory._idle = deque()


def test_a_forked_child_has_its_own(memory: BatchMemory) -> None:
    tensor = filled(memory, 1)
    child = os.fork()
    if child == 0:  # numpy alone: torch's threads are not there after a fork
        fits = set(tensor.numpy()[:, 0].tolist()) == {1}
        del tensor
        memory.empty((ROWS, ROW), torch.uint8).numpy()[:] = 9
        os._exit(0 if fits else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert seen(tensor) == {1}


# What a loader hands out.


@pytest.fixture
def shards(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Shards:
    monkeypatch.setattr(batchmemory, "SMALL_BYTES", 1)  # of any batch
    return seal_shards(tmp_path)


def spoiled_after_a_hundred(shards: Shards) -> tuple[bool, int]:
    """Whether a held batch changed, and in how many places the others lay."""
    with (
        shards.open() as dataset,
        SealedDataLoader(dataset, 8, shuffle=True, window_bytes=700) as batches,
    ):
        part = iter(batches)
        held = next(part)
        before = {name: tensor.clone() for name, tensor in held.items()}
        places, changed = set(), False
        for rest in (part, *[batches] * 8):
            for batch in rest:
                places.add(batch["x"].data_ptr())
                changed |= any(not torch.equal(held[n], before[n]) for n in held)
        return changed, len(places)


def test_a_held_batch_stays_what_it_was(shards: Shards) -> None:
    changed, places = spoiled_after_a_hundred(shards)
    assert not changed
    assert places < 20  # of 116 batches: memory did come again


def test_a_mutant_that_takes_memory_back_early(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: the test above sees a batch that changes under its holder."""

    def at_once(_: Any, give_back: Callable[..., None], *args: Any) -> Any:
        give_back(*args)
        return SimpleNamespace()

    monkeypatch.setattr(batchmemory.weakref, "finalize", at_once)
    changed, _ = spoiled_after_a_hundred(shards)
    assert changed


def test_batches_that_are_kept_and_dropped_at_random(shards: Shards) -> None:
    chance = np.random.default_rng(5)
    kept: list[Any] = []
    with (
        shards.open() as dataset,
        SealedDataLoader(dataset, 7, shuffle=True, window_bytes=700) as batches,
    ):
        for _ in range(10):
            for batch in batches:
                kept.append(batch)
                if chance.random() < 0.9:
                    kept.pop(chance.integers(len(kept)))
    assert len(kept) > 5
    for batch in kept:  # also when the loader is closed
        expected = torch.from_numpy(shards.arrays["x"])[batch["id"]]
        assert torch.equal(batch["x"], expected)


def test_a_loader_that_rests_keeps_no_rows(shards: Shards) -> None:
    with (
        shards.open() as dataset,
        SealedDataLoader(dataset, 8, window_bytes=700) as batches,
    ):
        memory = batches._batch_memory
        part = iter(batches)
        held = [next(part) for _ in range(3)]
        del held[0]
        assert True in contents(memory)  # control
        part.close()  # type: ignore[attr-defined]
        held.clear()
        assert memory.idle_bytes
        assert True not in contents(memory)
    assert memory.idle_bytes == 0
