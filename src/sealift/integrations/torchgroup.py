"""A group of sealed pipes as torch.distributed's process group, in pure Python.

Collectives are worked on by one thread in the order in which they were asked for, so a
caller may go on meanwhile (``async_op=True``, DDP's buckets). A callback of one may ask for
another, which is done at once (DDP's hooks do). Messages of a pair of ranks keep their
place among these: both must ask for them in one order. Torch gave its methods new names
more than once; all generations end here.
Objects travel as ``objects`` encodes them. A tensor on a GPU is staged through the host:
untested on a GPU.
Source: torch.distributed's ProcessGroup; run with torch 2.13.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from types import FunctionType
from typing import Any, Final, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._dynamo.eval_frame import (
    _FrameAction,
    _FrameExecStrategy,
    set_code_exec_strategy,
)
from torch.autograd import Variable

from sealift.collective.announcement import Reduction
from sealift.collective.group import SealedGroup
from sealift.collective.tensors import Array, bad_tensor
from sealift.errors import JobError, PeerError, UsageError

MAX_TOLD_BYTES: Final = 1 << 32  # room that a call makes because other ranks say so
_REDUCTIONS: Final = {
    dist.ReduceOp.SUM: Reduction.SUM,
    dist.ReduceOp.AVG: Reduction.SUM,
    dist.ReduceOp.MAX: Reduction.MAX,
    dist.ReduceOp.MIN: Reduction.MIN,
    dist.ReduceOp.PRODUCT: Reduction.PRODUCT,
    dist.ReduceOp.BAND: Reduction.BITS_AND,
    dist.ReduceOp.BOR: Reduction.BITS_OR,
    dist.ReduceOp.BXOR: Reduction.BITS_XOR,
}
_NOT_COMPILED: Final = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
_NUMPY_HAS: Final = frozenset({
    torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.int16,
    torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128, torch.uint16,
    torch.uint32, torch.uint64,
})  # fmt: skip


class SealedWork(dist._Work):  # type: ignore[misc]  # noqa: SLF001 - torch has no other name
    """A collective under way.

    Args:
        limit_s: How long ``wait`` waits if it is not told; None for as long as it takes.
        give_up: Ends the group, where that was too short.
    """

    def __init__(self, limit_s: float | None, give_up: Callable[[], None]) -> None:
        super().__init__()
        self._limit_s, self._give_up = limit_s, give_up
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._future: torch.futures.Future[list[Tensor]] = torch.futures.Future()
        # To C++ the future that failed here holds an error as its value, this one fails.
        self._told = self._future.then(lambda done: done.value())
        if torch._C._current_graph_task_id() >= 0:  # noqa: SLF001 - as FSDP asks
            # Waited for before DDP waits, who would lose the error's type.
            Variable._execution_engine.queue_callback(self.wait)  # noqa: SLF001

    def end(self, tensors: list[Tensor], error: BaseException | None) -> None:
        """It is over; called once."""
        self._error = error
        self._over.set()  # before what follows: callbacks run now, and may wait for it
        if error is not None:
            self._future.set_exception(error)
        else:
            self._future.set_result(tensors)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for it; raises what it failed with.

        Args:
            timeout: At most so long; zero and None stand for the group's.

        Raises:
            PeerError: code ``peer-timeout``; the group has ended then.
        """
        limit_s = timeout.total_seconds() if timeout else self._limit_s
        if limit_s is not None and not self._over.wait(limit_s):
            self._give_up()
            raise PeerError(
                "a collective did not end in time",
                why=f"this rank waited for {limit_s:g} s",
                code="peer-timeout",
            )
        self._future.wait()
        return True

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """Of its tensors."""
        return self._told

    def is_completed(self) -> bool:
        """Whether it is over."""
        return bool(self._future.done())

    def is_success(self) -> bool:
        """Whether it is over, and did not fail."""
        return self._over.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        """What it failed with."""
        return self._error

    def result(self) -> list[Tensor]:
        """Its tensors, once it is over; raises what it failed with."""
        self.wait()
        tensors: list[Tensor] = self._future.value()
        return tensors


End = Callable[[BaseException | None], None]
Tensors: TypeAlias = "Tensor | Sequence[Tensor]"  # torch gives one, or a list


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
        self._ident = self._thread.submit(threading.get_ident).result()
        # What comes from one rank waits for nothing that comes from another.
        self._lanes: dict[int, ThreadPoolExecutor] = {}
        self._changed = threading.Condition()
        self._receiving, self._sending = 0, 0
        self._limit_s: float | None = None
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

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> SealedProcessGroup:
        return self  # tensors of every device, staged where they are not on the host

    def set_timeout(self, timeout: timedelta) -> None:
        """How long ``wait`` waits from now on; a pipe's own limit stays as it was."""
        self._limit_s = timeout.total_seconds()

    def allreduce(self, tensors: Any, options: Any = None) -> SealedWork:
        """Combine in place: one tensor, or each of a list; dense or sparse."""
        return self._begin(tensors, self._all_reduce, _operator(options))

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Any, options: Any = None) -> SealedWork:
        """Combine; the tensor of ``options.rootRank`` gets the result."""
        return self._begin(tensors, self._reduce, _root(options), _operator(options))

    def broadcast(self, tensors: Any, options: Any = None) -> SealedWork:
        """From ``options.rootRank``."""
        return self._begin(tensors, self._broadcast, _root(options))

    def allgather(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], options: Any = None
    ) -> SealedWork:
        """Everybody's tensor, each into one of ``outputs[0]``."""
        return self._begin(outputs[0], self._all_gather, inputs[0])

    def _allgather_base(
        self, output: Tensor, part: Tensor, options: Any = None
    ) -> SealedWork:
        return self._begin(output, self._gather_into, part)

    def _reduce_scatter_base(
        self, output: Tensor, whole: Tensor, options: Any = None
    ) -> SealedWork:
        return self._begin(output, self._reduce_scatter, [whole], _operator(options))

    def reduce_scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], options: Any = None
    ) -> SealedWork:
        """Of ``inputs[0]``, a tensor a rank."""
        op = _operator(options)
        return self._begin(outputs[0], self._reduce_scatter, inputs[0], op)

    def allgather_into_tensor_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], options: Any = None
    ) -> SealedWork:
        """Several; the last is over when all are."""
        parts = zip(outputs, inputs, strict=True)
        return [self._allgather_base(*each) for each in parts][-1]

    def reduce_scatter_tensor_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], options: Any = None
    ) -> SealedWork:
        """Several; the last is over when all are."""
        parts = zip(outputs, inputs, strict=True)
        return [self._reduce_scatter_base(*each, options) for each in parts][-1]

    def gather(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], options: Any = None
    ) -> SealedWork:
        """Everybody's tensor, into ``outputs[0]`` of ``options.rootRank``."""
        into = outputs[0] if outputs else inputs
        return self._begin(into, self._gather, inputs[0], _root(options))

    def scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], options: Any = None
    ) -> SealedWork:
        """``inputs[0]`` of ``options.rootRank``, a tensor a rank."""
        parts = inputs[0] if inputs else []
        return self._begin(outputs[0], self._scatter, parts, _root(options))

    def alltoall(
        self, outputs: list[Tensor], inputs: list[Tensor], options: Any = None
    ) -> SealedWork:
        """``inputs[k]`` goes to rank k, what it has for this rank into ``outputs[k]``."""
        return self._begin(outputs, self._all_to_all, inputs)

    def alltoall_base(
        self,
        output: Tensor,
        whole: Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        options: Any = None,
    ) -> SealedWork:
        """The same with one tensor each, cut along its first axis."""
        splits = output_splits, input_splits
        return self._begin(output, self._all_to_all_rows, whole, *splits)

    # Torch 2.13's names.
    all_gather_single, reduce_scatter_single = _allgather_base, _reduce_scatter_base
    all_to_all_single = alltoall_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def send(self, tensors: list[Tensor], to: int, tag: int = 0) -> SealedWork:
        """To one rank, which receives in the order in which this one sends."""
        return self._queue(tensors, partial(self._send, tensors[0], to, tag))

    def recv(self, tensors: list[Tensor], sender: int, tag: int = 0) -> SealedWork:
        """From one rank."""
        return self._queue(tensors, partial(self._receive, tensors[0], sender, tag))

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> SealedWork:
        """Refused: a pipe is one rank's; raises UsageError."""
        raise UsageError(
            "a sealed group cannot receive from just any rank",
            fix="Give `src` to `recv`",
            code="bad-world",
        )

    def barrier(self, opts: Any = None) -> SealedWork:
        """Until every rank has come here."""
        return self._begin(torch.zeros(1), lambda _: self._group.barrier())

    def shutdown(self) -> None:
        """Once all ranks have everything."""
        self._thread.shutdown()
        for lane in self._lanes.values():
            lane.shutdown()
        with self._changed:
            self._changed.wait_for(lambda: not self._sending)
        with self._connections:
            self._group.close()

    def abort(self) -> None:
        """At once, on every rank."""
        self._group.abort()

    def _begin(
        self, tensors: Tensors, work: Callable[..., None], *more: Any
    ) -> SealedWork:
        """Have a collective done, when all that was to be received has come."""
        # As they are now: the script may change lists of its own before it is done.
        given = [list(e) if isinstance(e, list) else e for e in (tensors, *more)]

        def whole(end: End) -> None:
            with self._changed:
                self._changed.wait_for(lambda: not self._receiving)
            work(*given)
            end(None)

        return self._queue(_listed(given[0]), whole)

    def _queue(
        self, tensors: Sequence[Tensor], work: Callable[[End], None]
    ) -> SealedWork:
        under_way = SealedWork(self._limit_s, self._group.abort)

        def end(error: BaseException | None) -> None:
            if error is not None:
                self._group.abort()  # nobody else may go on without this rank
            under_way.end(list(tensors), error)

        if threading.get_ident() == self._ident:
            # A callback of the collective before: all ranks are there at that moment, and
            # what was asked for later comes later.
            _do(work, end)
        else:
            self._thread.submit(_do, work, end)
        return under_way

    def _all_reduce(self, tensors: Tensors, op: Any) -> None:
        for tensor in _listed(tensors):
            if tensor.is_sparse:
                self._add_sparse(tensor, op)
                continue
            with _on_host(tensor, _sum_dtype(tensor)) as array:
                self._group.all_reduce(array, _reduction(op))
            self._average(tensor, op)

    def _average(self, tensor: Tensor, op: Any) -> None:
        if op == dist.ReduceOp.AVG:  # of whole numbers as NCCL does, towards zero
            whole = not (tensor.is_floating_point() or tensor.is_complex())
            tensor.div_(self.size(), rounding_mode="trunc" if whole else None)

    def _add_sparse(self, tensor: Tensor, op: Any) -> None:
        """All ranks' elements, added in the order of ranks.

        Torch writes where the places say, so what a rank sent is compared with the shape
        before anything is made of it.
        """
        if not (op == dist.ReduceOp.SUM or op == dist.ReduceOp.AVG):
            raise UsageError(
                f"a sealed group does not support {op} of sparse tensors",
                code="bad-tensor",
            )
        own = tensor.detach().coalesce()
        indices, values = own.indices(), own.values()
        axes = own.sparse_dim()
        element = axes * indices.element_size() + (
            values.shape[1:].numel() * values.element_size()
        )
        everybody = torch.empty(self.size(), dtype=torch.int64)
        self._group.all_gather(np.array([len(values)]), everybody.numpy())
        counts = everybody.tolist()
        for rank, count in enumerate(counts):
            if not 0 <= count <= tensor.shape[:axes].numel():
                raise _bad_part(
                    rank, f"{count} elements for a tensor of {tensor.shape}"
                )
            if count * element * self.size() > MAX_TOLD_BYTES:
                raise _bad_part(
                    rank,
                    f"{count:,} elements of {element:,} bytes; all "
                    f"{self.size()} ranks together may send {MAX_TOLD_BYTES:,} bytes",
                )
        parts = []
        for mine, axis in ((indices, 1), (values, 0)):
            shape = list(mine.shape)
            shape[axis] = max(counts)
            padded = mine.new_zeros(shape)
            padded.narrow(axis, 0, len(values)).copy_(mine)
            rooms = [torch.empty_like(padded) for _ in counts]
            self._all_gather(rooms, padded)
            cut = zip(rooms, counts, strict=True)
            parts.append([each.narrow(axis, 0, count) for each, count in cut])
        limits = torch.tensor(tensor.shape[:axes]).unsqueeze(1)
        for rank, places in enumerate(parts[0]):
            if bool(((places < 0) | (places >= limits)).any()):
                raise _bad_part(rank, f"indices outside of a tensor of {tensor.shape}")
        total = torch.sparse_coo_tensor(
            torch.cat(parts[0], 1),
            torch.cat(parts[1], 0),
            size=tensor.shape,
            check_invariants=True,
        ).coalesce()
        tensor.copy_(total / self.size() if op == dist.ReduceOp.AVG else total)

    def _reduce(self, tensors: Tensors, root: int, op: Any) -> None:
        for tensor in _listed(tensors):
            staged = _staged(tensor, _sum_dtype(tensor))
            self._group.reduce(staged.numpy(), root, _reduction(op))
            if root == self.rank():
                tensor.copy_(staged)
                self._average(tensor, op)

    def _broadcast(self, tensors: Tensors, root: int) -> None:
        for tensor in _listed(tensors):
            with _on_host(tensor) as array:
                self._group.broadcast(array, root)

    def _all_gather(self, outputs: list[Tensor], part: Tensor) -> None:
        mine = _staged(part)
        whole = torch.empty(len(outputs), *mine.shape, dtype=mine.dtype)
        self._group.all_gather(mine.numpy(), whole.numpy())
        for output, given in zip(outputs, whole, strict=True):
            _fill(output, given)

    def _gather_into(self, output: Tensor, part: Tensor) -> None:
        if output.numel() != part.numel() * self.size():
            raise bad_tensor(f"{output.numel()} elements for {self.size()} parts")
        whole = _staged(output)
        self._group.all_gather(_staged(part).numpy(), whole.numpy())
        _fill(output, whole)

    def _reduce_scatter(self, output: Tensor, parts: Sequence[Tensor], op: Any) -> None:
        whole = torch.cat([each.reshape(-1) for each in parts])  # used up
        dtype = _sum_dtype(output)
        with _on_host(output, dtype) as mine, _on_host(whole, dtype) as everything:
            self._group.reduce_scatter(everything, mine, _reduction(op))
        self._average(output, op)

    def _gather(self, outputs: list[Tensor], part: Tensor, root: int) -> None:
        mine, whole = _staged(part), None
        if root == self.rank():
            whole = torch.empty(self.size(), *mine.shape, dtype=mine.dtype)
        self._group.gather(mine.numpy(), None if whole is None else whole.numpy(), root)
        if whole is not None:
            for output, given in zip(outputs, whole, strict=True):
                _fill(output, given)

    def _scatter(self, output: Tensor, parts: list[Tensor], root: int) -> None:
        whole = torch.stack([_staged(each) for each in parts]) if parts else None
        with _on_host(output) as mine:
            self._group.scatter(None if whole is None else whole.numpy(), mine, root)

    def _all_to_all(self, outputs: list[Tensor], inputs: list[Tensor]) -> None:
        rooms = [_staged(each) for each in outputs]
        parts = [_staged(each).numpy() for each in inputs]
        self._group.all_to_all(parts, [each.numpy() for each in rooms])
        for output, given in zip(outputs, rooms, strict=True):
            _fill(output, given)

    def _all_to_all_rows(
        self,
        output: Tensor,
        whole: Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
    ) -> None:
        pieces = []
        for tensor, splits in ((output, output_splits), (whole, input_splits)):
            rows = len(tensor)
            even = [rows // self.size()] * self.size()
            cuts = list(splits) or even
            if sum(cuts) != rows or len(cuts) != self.size():
                raise bad_tensor(f"{rows} rows cannot be split into {cuts}")
            pieces.append(list(tensor.split(cuts)))
        self._all_to_all(*pieces)

    def _send(self, tensor: Tensor, to: int, tag: int, end: End) -> None:
        with self._changed:
            self._sending += 1

        def sent(error: BaseException | None) -> None:
            self._end_message(end, error)
            with self._changed:
                self._sending -= 1
                self._changed.notify_all()

        try:
            self._group.send(_staged(tensor).numpy(), to, sent, tag)
        except BaseException as error:  # it is raised where somebody waits
            sent(error)

    def _receive(self, tensor: Tensor, sender: int, tag: int, end: End) -> None:
        with self._changed:
            self._receiving += 1
        if sender not in self._lanes:
            name = f"sealed from rank {sender}"
            self._lanes[sender] = ThreadPoolExecutor(1, thread_name_prefix=name)

        def take() -> None:
            error: BaseException | None = None
            try:
                with _on_host(tensor) as array:
                    self._group.receive(array, sender, tag)
            except BaseException as caught:  # it is raised where somebody waits
                error = caught
            with self._changed:
                self._receiving -= 1
                self._changed.notify_all()
            self._end_message(end, error)

        self._lanes[sender].submit(take)

    def _end_message(self, end: End, error: BaseException | None) -> None:
        """On a thread of its own: a callback may ask for anything, and wait for it."""
        name = "end of a sealed message"
        threading.Thread(target=end, args=(error,), name=name, daemon=True).start()


def _leave_to_python(kind: type) -> None:
    """Have ``torch.compile`` run these methods as they are, and not look into them.

    As ``torch.compiler.disable`` does, without loading the compiler.
    """
    for method in vars(kind).values():
        if isinstance(method, FunctionType):
            set_code_exec_strategy(method.__code__, _NOT_COMPILED)


_leave_to_python(SealedProcessGroup)
_leave_to_python(SealedWork)


def _listed(tensors: Tensors) -> Sequence[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else tensors


def _do(work: Callable[[End], None], end: End) -> None:
    try:
        work(end)
    except BaseException as error:  # it is raised where somebody waits
        end(error)


@contextmanager
def _on_host(tensor: Tensor, dtype: torch.dtype | None = None) -> Iterator[Array]:
    """A contiguous array of the tensor's elements; what is written there ends in it."""
    staged = _staged(tensor, dtype)
    yield staged.numpy()
    if staged.data_ptr() != tensor.data_ptr():
        _fill(tensor, staged)


def _staged(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The elements in a row on the host, in a type that NumPy has: the tensor if it can be.

    Without ``dtype``, elements that are only moved are bytes where NumPy lacks their type.
    """
    plain = tensor.detach()
    if plain.is_meta:
        raise bad_tensor("it is on the device meta and has no elements")
    plain = plain.to("cpu", dtype or plain.dtype).contiguous()
    known = plain.dtype in _NUMPY_HAS
    return plain if known else plain.reshape(-1).view(torch.uint8)


def _fill(tensor: Tensor, staged: Tensor) -> None:
    """Put what ``_staged`` made back."""
    plain = tensor.detach()
    if staged.dtype is torch.uint8 and plain.dtype is not torch.uint8:
        staged = staged.reshape(-1).view(plain.dtype)
    if staged.numel() != plain.numel():
        raise bad_tensor(f"{staged.numel()} elements for a tensor of {plain.numel()}")
    plain.copy_(staged.view(plain.shape))


def _sum_dtype(tensor: Tensor) -> torch.dtype:
    """NumPy has no bfloat16; its sums are made in float32 and rounded once.

    Raises:
        UsageError: code ``bad-tensor``: elements that cannot be added.
    """
    if tensor.dtype is torch.bfloat16:
        return torch.float32
    if tensor.dtype not in _NUMPY_HAS:
        raise bad_tensor(f"{tensor.dtype} elements cannot be reduced")
    return tensor.dtype


def _bad_part(rank: int, why: str) -> JobError:
    return JobError(
        f"rank {rank} sent an invalid part of a sparse tensor",
        why=why,
        code="bad-tensor",
        ranks=(rank,),
    )


def _operator(options: Any) -> Any:
    return getattr(options, "reduceOp", dist.ReduceOp.SUM)


def _root(options: Any) -> int:
    return getattr(options, "rootRank", 0)


def _reduction(op: Any) -> Reduction:
    for known, reduction in _REDUCTIONS.items():
        if op == known:
            return reduction
    raise UsageError(f"a sealed group does not support {op}", code="bad-tensor")
