"""A group of sealed pipes as torch.distributed's process group, in pure Python.

Collectives are worked on by one thread in the order in which they were asked for, so a
caller may go on meanwhile (``async_op=True``, DDP's buckets). Torch gave its methods new
names more than once; all generations end here.
Not here: object collectives. They unpickle what other ranks sent, so tensors of bytes,
which they travel in, are refused. A tensor on a GPU is staged through the host: untested
on a GPU.
Source: torch.distributed's ProcessGroup; run with torch 2.13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Variable

from sealift.collective.announcement import Reduction
from sealift.collective.group import SealedGroup
from sealift.collective.tensors import Array
from sealift.errors import UsageError, require_value

_REDUCTIONS: Final = {
    dist.ReduceOp.SUM: Reduction.SUM,
    dist.ReduceOp.AVG: Reduction.SUM,
    dist.ReduceOp.MAX: Reduction.MAX,
    dist.ReduceOp.MIN: Reduction.MIN,
    dist.ReduceOp.PRODUCT: Reduction.PRODUCT,
}


class SealedWork(dist._Work):  # type: ignore[misc]  # noqa: SLF001 - torch has no other name
    """A collective under way."""

    def __init__(self, future: torch.futures.Future[list[Tensor]]) -> None:
        super().__init__()
        self._future = future
        # To C++ the future that failed here holds an error as its value, this one fails.
        self._told = future.then(lambda done: done.value())
        if torch._C._current_graph_task_id() >= 0:  # noqa: SLF001 - as FSDP asks
            # Waited for before DDP waits, who would lose the error's type.
            Variable._execution_engine.queue_callback(self.wait)  # noqa: SLF001

    def wait(self, timeout: object = None) -> bool:
        """Wait for it; raises what it failed with."""
        self._future.wait()
        return True

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """Of its tensors."""
        return self._told

    def is_completed(self) -> bool:
        """Whether it is over."""
        return bool(self._future.done())


class SealedProcessGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A ``SealedGroup`` under torch's names.

    Args:
        group: Owned from now on.
        connections: Closed after it.
    """

    def __init__(
        self, group: SealedGroup, connections: ExitStack | None = None
    ) -> None:
        super().__init__(group.rank, group.world)
        self._group = group
        self._connections = connections or ExitStack()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sealed collectives")
        self._name = ""

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """As in ``init_process_group``."""
        return "sealift"

    @property
    def group_name(self) -> str:
        """As torch calls this group."""
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def set_timeout(self, timeout: object) -> None:
        """The pipes' is said once, to ``init_process_group``; raises UsageError."""
        raise UsageError("the timeout of a sealed group cannot be changed")

    def allreduce(self, tensors: Any, options: Any = None) -> SealedWork:
        """Combine in place: one tensor, or each of a list."""
        tensors = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        op = getattr(options, "reduceOp", dist.ReduceOp.SUM)
        return self._begin(tensors, partial(self._all_reduce, tensors, op))

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: Any, options: Any = None) -> SealedWork:
        """From ``options.rootRank``."""
        tensors = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        root = getattr(options, "rootRank", 0)
        return self._begin(tensors, partial(self._broadcast, tensors, root))

    def allgather(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], options: Any = None
    ) -> SealedWork:
        """Everybody's tensor, each into one of ``outputs[0]``."""
        return self._begin(outputs[0], partial(self._all_gather, outputs[0], inputs[0]))

    def _allgather_base(
        self, output: Tensor, part: Tensor, options: Any = None
    ) -> SealedWork:
        return self._begin([output], partial(self._gather_into, output, part))

    def _reduce_scatter_base(
        self, output: Tensor, whole: Tensor, options: Any = None
    ) -> SealedWork:
        op = getattr(options, "reduceOp", dist.ReduceOp.SUM)
        return self._begin([output], partial(self._reduce_scatter, output, [whole], op))

    def reduce_scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], options: Any = None
    ) -> SealedWork:
        """Of ``inputs[0]``, a tensor a rank."""
        op = getattr(options, "reduceOp", dist.ReduceOp.SUM)
        work = partial(self._reduce_scatter, outputs[0], inputs[0], op)
        return self._begin(outputs[:1], work)

    def allgather_into_tensor_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], options: Any = None
    ) -> SealedWork:
        """Several; the last is over when all are."""
        parts = zip(outputs, inputs, strict=True)
        return [self._allgather_base(*each) for each in parts][-1]

    # Torch 2.13's names.
    all_gather_single, reduce_scatter_single = _allgather_base, _reduce_scatter_base

    def barrier(self, opts: Any = None) -> SealedWork:
        """Until every rank has come here."""
        return self._begin([torch.zeros(1)], self._group.barrier)

    def shutdown(self) -> None:
        """Once all ranks have everything."""
        self._thread.shutdown()
        with self._connections:
            self._group.close()

    def abort(self) -> None:
        """At once, on every rank."""
        self._group.abort()

    def _begin(self, tensors: Sequence[Tensor], work: Callable[[], None]) -> SealedWork:
        if any(tensor.dtype is torch.uint8 for tensor in tensors):
            self._group.abort()  # who went on would be one collective behind
            raise UsageError(
                "a sealed group sends no tensors of bytes",
                why="torch's object collectives use them, and unpickle what they receive",
                code="bad-tensor",
            )
        future: torch.futures.Future[list[Tensor]] = torch.futures.Future()
        under_way = SealedWork(future)
        self._thread.submit(self._finish, future, list(tensors), work)
        return under_way

    def _finish(
        self,
        future: torch.futures.Future[list[Tensor]],
        tensors: list[Tensor],
        work: Callable[[], None],
    ) -> None:
        try:
            work()
        except BaseException as error:  # it is raised where somebody waits
            self._group.abort()  # nobody else may go on without this rank
            future.set_exception(error)
        else:
            future.set_result(tensors)

    def _all_reduce(self, tensors: list[Tensor], op: Any) -> None:
        for tensor in tensors:
            with _on_host(tensor) as array:
                self._group.all_reduce(array, _reduction(op))
            if op == dist.ReduceOp.AVG:
                tensor /= self.size()

    def _broadcast(self, tensors: list[Tensor], root: int) -> None:
        for tensor in tensors:
            with _on_host(tensor) as array:
                self._group.broadcast(array, root)

    def _all_gather(self, outputs: list[Tensor], part: Tensor) -> None:
        with _on_host(part) as mine:
            whole = torch.empty(len(outputs), part.numel(), dtype=_host_dtype(part))
            self._group.all_gather(mine, whole.numpy())
        for output, found in zip(outputs, whole, strict=True):
            output.copy_(found.view(output.shape))

    def _gather_into(self, output: Tensor, part: Tensor) -> None:
        parts = list(output.view(-1).chunk(self.size()))
        self._all_gather(parts, part.reshape(-1))

    def _reduce_scatter(self, output: Tensor, parts: Sequence[Tensor], op: Any) -> None:
        whole = torch.cat([each.reshape(-1) for each in parts])  # used up
        with _on_host(output) as mine, _on_host(whole) as everything:
            self._group.reduce_scatter(everything, mine, _reduction(op))
        if op == dist.ReduceOp.AVG:
            output /= self.size()


def sealed_all_reduce(
    group: dist.ProcessGroup | None, bucket: dist.GradBucket
) -> torch.futures.Future[Tensor]:
    """DDP's communication hook: the mean of a bucket while backward goes on.

    ``model.register_comm_hook(None, sealed_all_reduce)``.
    """
    group = require_value(group or dist.group.WORLD)
    buffer = bucket.buffer().div_(group.size())
    future = dist.all_reduce(buffer, group=group, async_op=True).get_future()
    return cast(
        "torch.futures.Future[Tensor]", future.then(lambda done: done.value()[0])
    )


# Torch compares these with what it expects, and does not read them from text.
sealed_all_reduce.__annotations__ = {
    "bucket": dist.GradBucket,
    "return": torch.futures.Future[Tensor],
}


@contextmanager
def _on_host(tensor: Tensor) -> Iterator[Array]:
    """A contiguous array of the tensor's elements; what is written there ends in it."""
    plain = tensor.detach()
    staged = plain.to("cpu", _host_dtype(plain)).contiguous()
    yield staged.numpy()
    if staged.data_ptr() != plain.data_ptr():
        plain.copy_(staged)


def _host_dtype(tensor: Tensor) -> torch.dtype:
    """NumPy has no bfloat16; its sums are made in float32 and rounded once."""
    return torch.float32 if tensor.dtype is torch.bfloat16 else tensor.dtype


def _reduction(op: Any) -> Reduction:
    for known, reduction in _REDUCTIONS.items():
        if op == known:
            return reduction
    raise UsageError(f"a sealed group does not support {op}", code="bad-tensor")
