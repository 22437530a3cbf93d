"""A model's gradients as views of one memory, bucket by bucket, known as soon as they are whole.

Autograd adds each gradient to the view that a parameter has for it, so nothing is copied
between a backward pass and whoever adds the bucket up. That is so once for each parameter
and step: a recipe that starts backward passes of its own, or freezes and frees parameters
on its way, is refused. Of a model on a GPU that memory lies there, and each bucket is copied
to the one that is added up, and back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from sealift.errors import MalformedError, require_value
from sealift.ids import Buffer
from sealift.train.loop.buckets import Array, Bucket, Trained, cut_buckets
from sealift.train.loop.faults import unfit
from sealift.train.loop.states import TrainingState
from sealift.train.sandboxed.training import Training

Room = Callable[[int], memoryview]


def private_room(length: int) -> memoryview:
    """Memory of this process."""
    return memoryview(bytearray(length))


class Gradients:
    """The gradients of one task.

    Args:
        training: Its model and optimizer.
        state: That they went on from.
        bucket_bytes: The most that a bucket has.
        room: Where they lie.
        shared: Bytes of the device's memory where they lie instead, which the parent maps.

    Attributes:
        trained: Whose gradients these are.
        buckets: Their order.

    Raises:
        JobError: ``bad-recipe``, if some of them cannot be added up.
    """

    def __init__(
        self,
        training: Training,
        state: TrainingState,
        bucket_bytes: int,
        room: Room,
        *,
        shared: Tensor | None = None,
    ) -> None:
        named = training.guard(lambda: list(training.model.named_parameters()))
        self._parameters = dict(reversed([(n, p) for n, p in named if _is_trained(p)]))
        self._frozen = [each for _name, each in named if not _is_trained(each)]
        own = training.guard(training.model.state_dict)
        self.trained: Final = Trained(tuple(self._parameters), self._tied(own))
        self._demand_known(own, training.optimizer, training.placement.device)
        try:
            self.buckets = cut_buckets(self.trained, state.model(), bucket_bytes)
        except MalformedError:
            raise unfit("gradients") from None
        self._wait = training.placement.mark
        self._flat: list[Tensor] = []
        if shared is not None:
            self._there = [_part(shared, bucket) for bucket in self.buckets]
        else:
            memory = room(self.buckets[-1].start + self.buckets[-1].length)
            self._flat = [_flat(memory, bucket) for bucket in self.buckets]
            self._there = self._flat
            if not training.placement.is_cpu:
                device = training.placement.device
                self._there = [each.to(device, copy=True) for each in self._flat]
        self._copied = bool(self._flat) and self._there is not self._flat
        self._views = self._make_views()
        self._bucket_of = {n: each.number for each in self.buckets for n in each.names}
        self._whole: Callable[[Bucket], None] | None = None
        self._odd = False
        for name, parameter in self._parameters.items():
            parameter.register_post_accumulate_grad_hook(partial(self._came, name))

    def bytes_of(self, bucket: Bucket) -> memoryview:
        """Where a bucket lies; nothing, if the parent has it on the device."""
        return self.array(bucket).data.cast("B") if self._flat else memoryview(b"")

    def mark(self) -> Callable[[], None]:
        """Waits until the device has all that was begun there by now."""
        return self._wait()

    def array(self, bucket: Bucket) -> Array:
        """A bucket's numbers, to be changed in place."""
        found: Array = self._flat[bucket.number].numpy()
        return found

    def put(self, bucket: Bucket, total: Buffer) -> None:
        """Have the sum where the gradients were; it may lie there already."""
        if not self._flat:
            return
        own, there = self.array(bucket), np.frombuffer(total, bucket.dtype)
        if own.ctypes.data != there.ctypes.data:
            own[:] = there
        if self._copied:
            self._there[bucket.number].copy_(self._flat[bucket.number])

    def begin(self, whole: Callable[[Bucket], None]) -> None:
        """Zero them all; ``whole`` is called with each bucket in order, once it is."""
        if any(_is_trained(each) for each in self._frozen):
            raise unfit("gradients")
        for flat in self._there:
            flat.zero_()
        for name, parameter in self._parameters.items():
            parameter.grad = self._views[name]
        self._missing = set(self._parameters)
        self._left = [len(bucket.names) for bucket in self.buckets]
        self._next, self._whole = 0, whole

    def end(self) -> None:
        """The backward pass is over: what has no gradient keeps its zeros.

        Raises:
            JobError: ``bad-recipe``, if a gradient lies elsewhere or came twice.
        """
        for name, parameter in self._parameters.items():
            self._odd |= not self._is_ours(name, parameter)
        if self._odd:
            raise unfit("gradients")
        self._tell(len(self.buckets))
        self._whole = None

    def _came(self, name: str, parameter: Tensor) -> None:
        """Raises nothing: it is called in a backward pass, which a guard is around."""
        if self._whole is None or name not in self._missing:
            self._odd = True
            return
        self._odd |= not self._is_ours(name, parameter)
        self._missing.discard(name)
        self._left[self._bucket_of[name]] -= 1
        end = self._next
        while end < len(self._left) and not self._left[end]:
            end += 1
        self._tell(end)

    def _tell(self, end: int) -> None:
        while self._next < end:
            number, self._next = self._next, self._next + 1
            if self._copied:
                self._flat[number].copy_(self._there[number])
            require_value(self._whole)(self.buckets[number])

    def _is_ours(self, name: str, parameter: Tensor) -> bool:
        found = parameter.grad
        ours = found is not None and found.data_ptr() == self._views[name].data_ptr()
        return ours and _is_trained(parameter)

    def _make_views(self) -> dict[str, Tensor]:
        found = {}
        for bucket, flat in zip(self.buckets, self._there, strict=True):
            parts = flat.split(list(bucket.sizes))
            for name, part in zip(bucket.names, parts, strict=True):
                found[name] = part.view(self._parameters[name].shape)
        return found

    def _tied(self, own: Mapping[str, Tensor]) -> tuple[str, ...]:
        places = {each.data_ptr() for each in self._parameters.values()}
        others = (name for name in own if name not in self._parameters)
        return tuple(name for name in others if own[name].data_ptr() in places)

    def _demand_known(
        self,
        own: Mapping[str, Tensor],
        optimizer: torch.optim.Optimizer,
        device: torch.device,
    ) -> None:
        """All that is trained is a part of the model's state, under its own name."""
        ours = {id(each) for each in self._parameters.values()}
        groups: list[dict[str, Any]] = optimizer.param_groups
        others = (p for group in groups for p in group["params"] if id(p) not in ours)
        for name, each in self._parameters.items():
            kept = own.get(name)
            here = each.device == device
            if kept is None or kept.data_ptr() != each.data_ptr() or not here:
                raise unfit("gradients")
        if any(map(_is_trained, others)):
            raise unfit("gradients")


def _is_trained(parameter: Tensor) -> bool:
    return bool(parameter.requires_grad and parameter.numel())


def _part(shared: Tensor, bucket: Bucket) -> Tensor:
    end = bucket.start + bucket.length
    if end > len(shared):
        raise unfit("gradients")
    return shared[bucket.start : end].view(getattr(torch, bucket.dtype))


def _flat(memory: memoryview, bucket: Bucket) -> Tensor:
    return torch.frombuffer(
        memory,
        dtype=getattr(torch, bucket.dtype),
        count=bucket.elements,
        offset=bucket.start,
    )
