"""Where a task's states come from and go to, without a second copy of them in the worker.

What was read of a mapped state is given back to the kernel, and so is what was packed at
the end of a task: a state is then never twice in this process, however large it is. Memory
that others may still use stays: only whole pages of a tensor's own storage go, once every
name of it was packed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import numpy as np
import torch
from torch import Tensor

from sealift.errors import require_kind
from sealift.train.loop.faults import unfit
from sealift.train.loop.held import Content
from sealift.train.loop.states import ELEMENTS, MODEL, head_of, parse_tensors
from sealift.train.sandboxed.parentpipe import give_back
from sealift.train.sandboxed.torchstate import (
    as_tensor,
    as_tensors,
    form_of,
    pack_copies,
    tensor_bytes,
)
from sealift.train.worker.messages import places_of


class Shelf:
    """Copies; for a task in the process that has the states."""

    def load(self, blob: Content, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin so, in memory of their own."""
        return as_tensors(blob, prefix)

    def pack(
        self, tensors: Mapping[str, Tensor], *, ends: bool, used_up: bool
    ) -> Content:
        """One blob of them.

        Args:
            tensors: By name.
            ends: The task ends with them.
            used_up: Nothing is computed with them any more, and nobody else has them.
        """
        return pack_copies(tensors)

    def loaded(self) -> None:
        """All states of a training were loaded."""

    def drop_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Nobody steps any more."""
        for each in parameters:
            each.grad = None


COPIES: Final = Shelf()


class AreaShelf(Shelf):
    """Of a worker: states are mapped to be read, and written into the area.

    Args:
        room: The area's buffers.
        tell: Tells the parent once the states of a training were loaded.
    """

    def __init__(
        self, room: Callable[[], memoryview], tell: Callable[[], object]
    ) -> None:
        self._room, self._tell = room, tell
        self._kept = list[int]()  # lengths of the states that stay there

    def room(self) -> memoryview:
        """The buffers without what stays there."""
        whole = self._room()
        return whole[: places_of(len(whole), self._kept)[-1]] if self._kept else whole

    def loaded(self) -> None:
        """See ``Shelf``."""
        self._tell()

    def load(self, blob: Content, prefix: str) -> dict[str, Tensor]:
        """See ``Shelf``.

        A model's tensors are the mapped ones, since the model copies them: what a recipe
        does to them stays here. What is copied here is not mapped any more.
        """
        found = {}
        for name, each in parse_tensors(blob).items():
            if not name.startswith(prefix):
                continue
            place = np.frombuffer(require_kind(each.content, memoryview), np.uint8)
            raw = torch.from_numpy(place)
            dtype = getattr(torch, ELEMENTS[each.dtype][1])
            if name.startswith(MODEL) and not raw.data_ptr() % dtype.itemsize:
                found[name] = raw.view(dtype).view(each.shape)
                continue
            found[name] = as_tensor(each)
            give_back(place.ctypes.data, place.nbytes)
        return found

    def pack(
        self, tensors: Mapping[str, Tensor], *, ends: bool, used_up: bool
    ) -> Content:
        """See ``Shelf``.

        What the task ends with lies at the end of the area, where no other buffer comes.
        """
        left = Counter(map(_storage, tensors.values()))

        def packed(tensor: Tensor) -> None:
            storage = _storage(tensor)
            left[storage] -= 1
            if used_up and not left[storage]:
                give_back(*storage)

        if not ends:
            return self._put(0, tensors, packed)
        head, _order = head_of({n: form_of(each) for n, each in tensors.items()})
        length = len(head) + sum(each.nbytes for each in tensors.values())
        kept = [*self._kept, length]
        start = places_of(len(self._room()), kept)[-1]
        if start < 0:
            raise unfit("state-bytes")
        found = self._put(start, tensors, packed)
        self._kept = kept
        return found

    def drop_gradients(self, parameters: Iterable[Tensor]) -> None:
        """See ``Shelf``."""
        for each in parameters:
            if each.grad is not None:
                give_back(*_storage(each.grad))
                each.grad = None

    def _put(
        self,
        start: int,
        tensors: Mapping[str, Tensor],
        packed: Callable[[Tensor], None],
    ) -> memoryview:
        head, order = head_of({name: form_of(each) for name, each in tensors.items()})
        room, at = self.room(), start

        def write(content: bytes | memoryview) -> None:
            nonlocal at
            if at + len(content) > len(room):
                raise unfit("state-bytes")
            room[at : at + len(content)] = content
            at += len(content)

        write(head)
        for name in order:
            write(require_kind(tensor_bytes(tensors[name]).content, memoryview))
            packed(tensors[name])
        return room[start:at]


def _storage(tensor: Tensor) -> tuple[int, int]:
    if tensor.device.type != "cpu":
        return 0, 0
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()
