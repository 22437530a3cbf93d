"""Where a worker computes: the CPU, or one GPU, to which rows are copied beside the computing.

A model is built on the CPU, so that it begins with the same bits wherever it is trained,
and then moved, as ``nn.Module.to`` does. States leave as bytes of the CPU's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor, nn

from sealift.channel.cuda.bindings import open_driver
from sealift.channel.cuda.driver import faults_as_errors
from sealift.train.loop.faults import not_begun
from sealift.train.loop.tasks import DeviceScrub
from sealift.train.sandboxed.imports import Guard

Batch = dict[str, Tensor]
_FIRST_BATCHES: Final = 3  # an optimizer has its state after the first
_READ_BYTES: Final = 1 << 20


class DevicePlacement:
    """One device.

    Args:
        name: As torch writes it: ``cpu``, ``cuda:1``.
    """

    def __init__(self, name: str = "cpu") -> None:
        self.device: Final = torch.device(name)
        self._resting: list[int] = []

    @property
    def is_cpu(self) -> bool:
        """Whether nothing has to be moved."""
        return self.device.type == "cpu"

    def begin(self) -> None:
        """From here on, a recipe that says only ``cuda`` means this GPU.

        What a scrub runs there is loaded now: later there may be no room for it.

        Raises:
            UnavailableError: ``no-device``.
        """
        if self.device.type != "cuda":
            return
        try:
            torch.cuda.set_device(self.device)
            _overwrite([torch.ones(3 * _READ_BYTES, dtype=torch.uint8).to(self.device)])
        except Exception as error:
            raise not_begun(error) from None

    @contextmanager
    def beside_a_task(self) -> Iterator[None]:
        """While another process works there: take half of a GPU's free memory at most."""
        if self.device.type != "cuda":
            yield
            return
        free, total = torch.cuda.mem_get_info(self.device)
        torch.cuda.set_per_process_memory_fraction(free / 2 / total, self.device)
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, self.device)

    def put(self, model: nn.Module, guard: Guard) -> None:
        """Move a model, in place; the guard runs what may be a recipe's own."""
        if not self.is_cpu:
            guard(model.to, self.device)

    def batch(self, batch: Batch) -> Batch:
        """A batch on the device; it is there when this returns."""
        if self.is_cpu:
            return batch
        moved = {name: each.to(self.device) for name, each in batch.items()}
        self._note()
        return moved

    def batches(self, made: Iterable[Batch]) -> Iterator[Batch]:
        """Batches on the device; while one is worked on, a GPU is copied the next."""
        if self.device.type == "cuda":
            return self._copied_ahead(iter(made))
        return map(self.batch, made)

    def room(self) -> tuple[int, int]:
        """Bytes of the GPU's memory, and those in use before a batch is worked on.

        Zeros where nobody says: on the CPU, or before there was a batch.
        """
        if not self._resting:
            return 0, 0
        return torch.cuda.mem_get_info(self.device)[1], max(self._resting)

    def scrub(self) -> DeviceScrub:
        """Overwrite all that torch's allocator has of GPUs now, and read it back.

        Nothing computes there afterwards: tensors that still live are overwritten as well.
        What the allocator gave back during the task, and what others allocated, is not in it.

        Raises:
            RuntimeError: if the GPU is lost.
        """
        self.wait()
        parts = [
            _memory_at(each["address"], each["total_size"], each["device"])
            for each in torch.cuda.memory_snapshot()
        ]
        found = DeviceScrub(sum(map(len, parts)), _overwrite(parts))
        torch.cuda.empty_cache()
        return found

    def wait(self) -> None:
        """Until all that was begun is done.

        Raises:
            RuntimeError: if the GPU is lost, or an assertion of a kernel failed there.
        """
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def mark(self) -> Callable[[], None]:
        """Waits, once it is called, until all is done that was begun by now."""
        if self.device.type != "cuda":
            return lambda: None
        done = torch.cuda.Event()
        done.record(torch.cuda.current_stream(self.device))
        return done.synchronize

    def map_shared(self, descriptor: int, nbytes: int) -> Tensor:
        """Bytes of the GPU's memory that another process allocated, and maps too.

        Raises:
            UnavailableError: naming the driver's call that failed.
        """
        number = self.device.index or 0
        with faults_as_errors():
            address = open_driver(number).map_shared(descriptor, nbytes)
        return _memory_at(address, nbytes, number)

    def _copied_ahead(self, made: Iterator[Batch]) -> Iterator[Batch]:
        """A thread gathers and copies the next batch while the present one is computed on.

        A step ends with its loss in the host's memory, so whatever the thread of the steps
        did itself between two of them would have the GPU wait.
        """
        copying = torch.cuda.Stream(self.device)

        def copy_next() -> tuple[Batch, torch.cuda.Event] | None:
            batch = next(made, None)
            return None if batch is None else self._begin_copy(batch, copying)

        with ThreadPoolExecutor(1) as thread:
            coming = thread.submit(copy_next)
            while (copied := coming.result()) is not None:
                coming = thread.submit(copy_next)
                yield self._arrived(*copied)

    def _begin_copy(
        self, batch: Batch, copying: torch.cuda.Stream
    ) -> tuple[Batch, torch.cuda.Event]:
        """From pinned memory, which torch keeps until it was read."""
        with torch.cuda.stream(copying):
            moved = {
                name: each.pin_memory().to(self.device, non_blocking=True)
                for name, each in batch.items()
            }
            return moved, copying.record_event()

    def _arrived(self, batch: Batch, copied: torch.cuda.Event) -> Batch:
        """Not to be read before it is copied, nor given away while it is read."""
        self._note()
        computing = torch.cuda.current_stream(self.device)
        computing.wait_event(copied)
        for each in batch.values():
            each.record_stream(computing)
        return batch

    def _note(self) -> None:
        """How much is in use before a batch is worked on."""
        if self.device.type == "cuda" and len(self._resting) < _FIRST_BATCHES:
            self._resting.append(torch.cuda.memory_allocated(self.device))


class _Segment:
    """Memory by its address; the form is numba's CUDA array interface, version 3."""

    def __init__(self, address: int, length: int) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": (length,),
            "typestr": "|u1",
            "version": 3,
        }


def _overwrite(parts: Sequence[Tensor]) -> int:
    """Zero them, and then count what is not; at least one byte, if there is any."""
    for part in parts:
        part.zero_()
    return sum(map(_count_left, parts))


def _count_left(part: Tensor) -> int:
    """One half is laid over the other, in place, until little is left to copy and count.

    Nothing is allocated there: that might lie in what is read, or there is no room for it.
    """
    while len(part) > _READ_BYTES:
        half = (len(part) + 1) // 2
        part[: len(part) - half].bitwise_or_(part[half:])
        part = part[:half]
    return int(part.cpu().count_nonzero())


def _memory_at(address: int, length: int, number: int) -> Tensor:
    return torch.as_tensor(_Segment(address, length), device=f"cuda:{number}")


HERE: Final = DevicePlacement()
