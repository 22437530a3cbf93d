"""Batches of tensors from sealed shards: ``SealedDataLoader``.

Guarantees: no row reaches the caller before its record verified, unless that is asked
for (``verdicts="deferred"``), and then no guarded optimizer takes a step before; the rows come in the
order that seed, epoch and ranks decide, whatever the workers are; ``state_dict`` says
exactly which row is next; when iteration ends, also by an error, opened rows that were
not handed out are overwritten. A batch is the caller's for as long as anything refers to
it; then large ones make room for later ones of this loader (``batchmemory``).
Not promised: what becomes of batches; they lie in ordinary memory.

Batches that are used before their verdict, on request: what may be, and who waits.

Rule M3: floats only, in batches that all have one shape, and no optimizer step, no copy
to the host, nothing outward before the verdict. An optimizer that takes such batches is
guarded; without one no batch is handed out.

No optimizer step before the verdict of the batches its gradients came from.

The pure gate is ``channel/verdict.py``; here it is hung into torch. On a failed verdict
the gradients are overwritten and dropped, and the step raises instead of stepping.
Not here: what a forward pass keeps (running averages, activations). It is of a batch that
never verified, so such a model goes back to a checkpoint; nothing of it passes the gate.
Nor what leaves without asking: ``loss.item()``, sends during the backward pass.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, Self

import torch
from torch import Tensor

from sealift.channel.device.device import Verdicts
from sealift.channel.device.verdict import Gate, check_deferrable, not_deferred
from sealift.data.loader.arguments import (
    SealedRows,
    demand_count,
    place_among_ranks,
    refuse_torchs,
    source_of,
)
from sealift.data.loader.batches import BatchMemory, BatchPlan, PartialBatch
from sealift.data.loader.memories import (
    Engine,
    MemoryOptions,
    WindowRows,
    WorkerKind,
    make_rows,
)
from sealift.data.loader.opening import AllOf
from sealift.data.loader.windows import WindowStream
from sealift.data.schedule.order import (
    EpochOrder,
    LoaderState,
    OrderOptions,
    parse_state,
)
from sealift.data.schema.schema import Field
from sealift.errors import AuthenticationError, SealiftError, UsageError

WINDOW_BYTES: Final = 64 << 20

_LOOKED: Final = (
    "the earlier read of one batch used up epoch {}, and this is the next "
    "epoch: call set_epoch() after such a read, or read dataset[:8] instead"
)
Tensors = dict[str, Tensor] | tuple[Tensor, ...]
Transform = Callable[[Any], Any]


class StepGate:
    """Every step of ``optimizer`` passes ``gate`` first.

    Args:
        optimizer: Its parameters' gradients are dropped when a verdict fails.
        gate: Ask it before anything else that is outward, too: checkpoints, sends,
            copies to the host.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, gate: Gate) -> None:
        self.gate = gate
        self.closed = False
        self._optimizer = optimizer
        gate.on_failure(self._drop_gradients)
        self._hook = optimizer.register_step_pre_hook(self._before_step)

    def admit(self, batch: Tensor, verdicts: Verdicts) -> Tensor:
        """Let work begin on ``batch``, of any shape, before its verdicts came.

        It is overwritten if they fail.

        Raises:
            UsageError: code ``deferral-not-allowed``, if it is not of floats.
        """
        nbytes = batch.numel() * batch.element_size()
        self.gate.admit(
            verdicts,
            dtype=str(batch.dtype),
            shape=batch.shape,
            nbytes=nbytes,
            undo=lambda: overwrite(batch),
        )
        return batch

    def close(self) -> None:
        """Take the gate out of the optimizer again."""
        self.closed = True
        self._hook.remove()

    def _before_step(
        self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Check; and once more after a closure, which may have taken a batch itself."""
        self.gate.check()
        guarded = [self._guarded(each) if callable(each) else each for each in args]
        if callable(closure := kwargs.get("closure")):
            kwargs = {**kwargs, "closure": self._guarded(closure)}
        return tuple(guarded), kwargs

    def _guarded(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def evaluate() -> Any:
            loss = closure()
            self.gate.check()
            return loss

        return evaluate

    def _drop_gradients(self) -> None:
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    overwrite(parameter.grad)
                    parameter.grad = None


def overwrite(tensor: Tensor) -> None:
    """Put zeroes over what a tensor holds."""
    with torch.no_grad():
        tensor.detach().zero_()


Verdicting = Literal["strict", "deferred"]
KINDS: Final = ("strict", "deferred")


class Deferral:
    """The gate of a loader, and the optimizers behind it.

    Args:
        on_failure: Scrubs what the loader holds.
    """

    def __init__(self, on_failure: Callable[[], None]) -> None:
        self.gate = Gate([on_failure])
        self._steps: list[StepGate] = []

    def guard(self, optimizer: torch.optim.Optimizer) -> StepGate:
        """Let every step of ``optimizer`` wait for the verdicts that are out."""
        self._steps.append(StepGate(optimizer, self.gate))
        return self._steps[-1]

    def demand_guarded(self) -> None:
        """Demand that somebody waits.

        Raises:
            UsageError: code ``deferral-not-allowed``.
        """
        if all(each.closed for each in self._steps):
            raise not_deferred(
                "no optimizer waits for the verdict: call loader.guard(optimizer)"
            )

    def admit(self, tensors: Sequence[Tensor], verdicts: Sequence[Verdicts]) -> None:
        """Let work begin on a batch; it is overwritten if one of the verdicts fails.

        Raises:
            AuthenticationError: if one failed before; the batch is overwritten.
        """
        whole = AllOf(verdicts)
        try:
            for tensor in tensors if verdicts else ():
                self._steps[0].admit(tensor, whole)
        except AuthenticationError:
            for tensor in tensors:
                overwrite(tensor)
            raise


def _check_deferral(
    kind: str, fields: Sequence[Field], batch_size: int, *, one_shape: bool
) -> bool:
    """Whether verdicts are deferred.

    Args:
        kind: ``strict`` or ``deferred``.
        fields: Those of a batch.
        batch_size: Rows of a batch.
        one_shape: Whether every batch has so many.

    Raises:
        UsageError: code ``deferral-not-allowed``, unless all is float and of one shape.
    """
    if kind not in KINDS:
        raise UsageError(f"verdicts must be 'strict' or 'deferred', not {kind!r}")
    if kind == "strict":
        return False
    for field in fields:
        shape, nbytes = (batch_size, *field.shape), batch_size * field.size_bytes
        check_deferrable(field.dtype, shape, nbytes)
    if not one_shape:
        raise not_deferred("the last batch is shorter: use drop_last=True")
    return True


class SealedDataLoader:
    """Iterates over sealed rows in batches of tensors.

    Each ``for``, and each ``iter``, is one epoch: the first is epoch 0, or where
    ``load_state_dict`` or ``set_epoch`` put it; every further one is the next epoch. A
    look at one batch is one, too, which the next ``for`` says (``UserWarning``).

    Args:
        dataset: What to read, and not close: a ``SealedDataset``, or what torch's
            ``random_split``, ``Subset`` and ``ConcatDataset`` make of some. Rows of a
            ``Subset`` come in the order in which they lie, unless shuffled.
        batch_size: Rows of a batch; the last one may be shorter.
        shuffle: Records in random order, and rows among ``window_bytes`` of them.
        seed: Decides the order, with the epoch's number.
        drop_last: Leave out a last batch that is shorter, and rows that do not divide
            among ranks; if not, some rows are repeated so that ranks have as many.
        fields: Batches are tuples of these fields; dicts of all if None.
        num_workers: Who opens records besides this thread, which helps where it would
            only wait for threads; 0: this thread alone.
        workers: ``"thread"``, or ``"process"`` for processes of their own.
        window_bytes: Rows in memory at once (twice, with workers); also how many
            bytes are shuffled together.
        rank, world_size: torch.distributed's if it is initialised, else 0 of 1.
        device: Where batches are; ``"auto"`` is the GPU where there is one, else the
            processor. A GPU that is there and cannot be used is an error.
        engine: Who opens records: ``"auto"`` is the GPU itself for a CUDA ``device``
            and the host for others; ``"host"`` opens here and copies batches to
            ``device``; or an engine (``channel.device.device``), which stays open.
        verdicts: ``"deferred"`` hands batches out before their records verified: only
            floats, only batches of one shape, only to optimizers that ``guard`` was
            told of; ``gate.check()`` comes before anything else that is outward.
        transform: Makes of each whole batch, on its device and in this thread, what is
            handed out; not together with ``verdicts="deferred"``.
        torchs: Other arguments of ``DataLoader``, at their defaults.

    Raises:
        UsageError: for options that mean nothing; one of torch's has a line of its own.
        UnavailableError: without memory for the windows.
    """

    def __init__(
        self,
        dataset: SealedRows,
        batch_size: int = 1,
        *,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        fields: Sequence[str] | None = None,
        num_workers: int = 1,
        workers: WorkerKind = "thread",
        window_bytes: int = WINDOW_BYTES,
        rank: int | None = None,
        world_size: int | None = None,
        device: str | torch.device = "cpu",
        engine: Engine = "auto",
        verdicts: Verdicting = "strict",
        transform: Transform | None = None,
        **torchs: object,
    ) -> None:
        refuse_torchs(torchs)
        demand_count(num_workers, "num_workers must not be negative")
        rank, world_size = place_among_ranks(rank, world_size)
        order = OrderOptions(
            shuffle=shuffle,
            seed=seed,
            window_bytes=window_bytes,
            rank=rank,
            world_size=world_size,
            pad=not drop_last,
        )
        self.dataset = dataset
        self._source = source_of(dataset)
        self._shards = shards = self._source.shards
        self._plan = plan = BatchPlan(
            shards.schema, shards.layout, order, batch_size, drop_last, fields
        )
        defers = _check_deferral(
            verdicts, plan.chosen, batch_size, one_shape=plan.has_one_shape
        )
        if defers and transform is not None:
            raise UsageError("transform= would copy a batch before it is verified")
        self._transform = transform
        self._deferral = Deferral(self._give_up) if defers else None
        self._memory_options = MemoryOptions(
            num_workers=num_workers,
            workers=workers,
            device=None if device == "auto" else torch.device(device),
            engine=engine,
            defers=defers,
        )
        self._rows: WindowRows | None = None
        self._batch_memory = BatchMemory()
        self._epoch, self._position = 0, 0
        self._fresh = True  # the position is where the next ``for`` begins
        self._stream: WindowStream | None = None
        self._closed = False

    @property
    def batch_size(self) -> int:
        """Rows of a batch; the last one may be shorter."""
        return self._plan.batch_size

    @property
    def drop_last(self) -> bool:
        """Whether a last batch that is shorter is left out."""
        return self._plan.drop_last

    @property
    def rank(self) -> int:
        """Which part of each epoch this is, of ``world_size``."""
        return self._plan.order.rank

    @property
    def world_size(self) -> int:
        """How many loaders share each epoch."""
        return self._plan.order.world_size

    @property
    def is_at_end(self) -> bool:
        """Whether the last batch of the epoch was handed out."""
        return self._position >= self._plan.end

    @property
    def num_workers(self) -> int:
        """Who opens records besides the thread that iterates."""
        return self._memory_options.num_workers

    @property
    def opened_by(self) -> str:
        """Which engine opens records, and why; what it needs is made ready for this.

        Raises:
            UnavailableError: if it cannot be used.
        """
        self._demand_usable()
        return self._opened_rows().opened_by

    @property
    def gate(self) -> Gate:
        """What waits for the verdicts that are out.

        Raises:
            UsageError: if verdicts are strict: nothing is ever out.
        """
        return self._demand_deferral().gate

    def guard(self, optimizer: torch.optim.Optimizer) -> StepGate:
        """Let each step of ``optimizer`` wait for the verdicts that are out.

        When one fails the step raises ``AuthenticationError`` instead, gradients are
        dropped, batches and windows are overwritten, and this loader hands out no more.

        Raises:
            UsageError: if verdicts are strict.
        """
        return self._demand_deferral().guard(optimizer)

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return self._plan.batches

    def __repr__(self) -> str:
        order, plan = self._plan.order, self._plan
        return (
            f"SealedDataLoader({plan.layout.rows} rows of {', '.join(plan.names)}; batch_size={plan.batch_size}, "
            f"shuffle={order.shuffle}, seed={order.seed}, drop_last={plan.drop_last}, rank={order.rank} of "
            f"{order.world_size}, num_workers={self.num_workers})"
        )

    def __iter__(self) -> Iterator[Any]:
        """One epoch; a former iteration ends.

        The iterator raises ``AuthenticationError``, ``IntegrityError``,
        ``UnavailableError`` or ``MalformedError``, which name the shard: put it right,
        then go on with ``load_state_dict(state_dict())``.
        """
        self._demand_usable()
        if self._deferral is not None:
            self._deferral.demand_guarded()
        self._end_stream()
        if not self._fresh:
            looked = self._position == self.batch_size < self._plan.end
            if looked and self._rows is not None:  # what failed was no look
                warnings.warn(_LOOKED.format(self._epoch), stacklevel=2)
            self._epoch, self._position = self._epoch + 1, 0
        self._fresh = False
        return self._batches()

    def set_epoch(self, epoch: int) -> None:
        """Begin the next ``for`` at the start of ``epoch``, from 0."""
        demand_count(epoch, "the epoch must be a whole number")
        self._end_stream()
        self._epoch, self._position, self._fresh = epoch, 0, True

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands: after the batch that was handed out last."""
        return self._state().to_plain()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next ``for`` begin with the row after those of ``state``.

        Raises:
            MalformedError: if it is not a state.
            UsageError: code ``loader-state``, if the order here is another one.
        """
        parsed = parse_state(state)
        parsed.demand_same_order(self._state())
        self._end_stream()
        self._epoch, self._position, self._fresh = parsed.epoch, parsed.position, True

    def close(self) -> None:
        """End workers, scrub what is in memory. Idempotent; the dataset stays open."""
        self._closed = True
        self._give_up()
        self._batch_memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _batches(self) -> Iterator[Any]:
        rows = self._opened_rows()
        order = EpochOrder(self._shards.layout, self._plan.order, self._epoch)
        stream = WindowStream(order.windows(self._position), rows.memory)
        self._stream = stream
        self._batch_memory.work()
        try:
            for batch in self._filled(stream, rows):
                made = self._handed_out(batch, rows)
                self._position += batch.rows  # not before: that may have failed
                del batch  # so that its memory is free when the caller drops it
                yield made
                del made
                if self._stream is not stream:
                    if self._deferral is not None:  # perhaps a verdict that failed
                        self._deferral.gate.check()
                    raise UsageError("another iteration over the loader ended this one")
        except SealiftError:
            self._give_up()  # what is open may be what is wrong
            if self._deferral is not None:  # whatever came before a verdict is that
                self._deferral.gate.check()
            raise
        finally:
            if self._stream is stream:
                self._end_stream()

    def _filled(self, stream: WindowStream, rows: WindowRows) -> Iterator[PartialBatch]:
        """Batches of one window, or at the seam of some."""
        position, last = self._position, self._plan.end
        batch: PartialBatch | None = None
        try:
            for loaded in stream:
                places = torch.from_numpy(loaded.places)
                taken = position - loaded.window.start
                columns, out = rows.columns(loaded.slot), rows.verdicts(loaded.slot)
                rows.until_written(loaded.slot)
                while taken < len(places) and position < last:
                    if batch is None:
                        count = min(self.batch_size, last - position)
                        names, memory = self._plan.names, self._batch_memory
                        batch = PartialBatch(
                            columns, names, count, memory, self.batch_size
                        )
                    part = places[taken : taken + batch.missing]
                    batch.fill(columns, part, out)
                    taken, position = taken + len(part), position + len(part)
                    if not batch.missing:
                        whole, batch = batch, None
                        yield whole
                        del whole
                if position >= last:
                    return
                rows.settle()
        finally:
            if batch is not None:
                batch.scrub()

    def _handed_out(self, batch: PartialBatch, rows: WindowRows) -> Any:
        placed = [tensor.to(rows.device) for tensor in batch.tensors]
        if self._deferral is not None:
            self._deferral.admit(placed, batch.verdicts)
        named = dict(zip(self._plan.names, placed, strict=True))
        made: Tensors = named if self._plan.fields is None else tuple(placed)
        return made if self._transform is None else self._transform(made)

    def _demand_deferral(self) -> Deferral:
        if self._deferral is None:
            raise UsageError(
                "verdicts are strict: a batch is returned only after it is verified",
                fix="Use verdicts='deferred' to start work before a batch is verified",
            )
        return self._deferral

    def _opened_rows(self) -> WindowRows:
        if self._rows is None:
            self._rows = make_rows(self._shards, self._plan.order, self._memory_options)
        return self._rows

    def _give_up(self) -> None:
        """End workers and close files; another iteration begins with fresh ones."""
        self._end_stream()
        rows, self._rows = self._rows, None
        if rows is not None:
            rows.close()

    def _end_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None and self._rows is not None:
            self._rows.settle()
            stream.close()
            self._batch_memory.rest()

    def _state(self) -> LoaderState:
        epoch, position = self._epoch, self._position
        if not self._fresh and self._plan.end - position < 1:
            epoch, position = epoch + 1, 0
        order = self._plan.order
        return LoaderState(
            epoch=epoch,
            position=position,
            shards=self._shards.fingerprint,
            shuffle=order.shuffle,
            seed=order.seed,
            window_bytes=order.window_bytes,
            world_size=order.world_size,
            pad=order.pad,
        )

    def _demand_usable(self) -> None:
        self._source.demand_usable()
        if self._closed:
            raise UsageError("this sealed loader is closed", code="dead-dataset")
