"""The worker's end of what it asks its parent, and memory that it maps.

A worker maps without Python's own ``mmap``, which keeps a duplicate of the descriptor as
long as the mapping lives: a recipe would find it, and with it the offset and flags of the
open file (rule N6). Mappings end with the process.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np

from sealift.errors import PeerError
from sealift.numeric.residues import F32
from sealift.outsource.terms import Backward, Forward, Layer
from sealift.train.sandbox.kernel import call
from sealift.train.worker.messages import (
    MAX_ORDER_BYTES,
    from_bytes,
    to_bytes,
    worker_gone,
)
from sealift.train.worker.products import GOES_ON, BeginStep, Settle, cut_operands
from sealift.train.worker.requests import (
    HEAD,
    MESSAGE_AT,
    PARENT_AT,
    TALK_BYTES,
    WORKER_AT,
    Head,
    await_bell,
    ring,
)

_READ, _WRITE = mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE
Room = Callable[[int], memoryview]


class AskedProducts:
    """What the worker asks; a ``StepProducts``.

    Args:
        ask: The parent (``WorkerEnd.ask``).
        room: Where operands lie, and then their products.
    """

    def __init__(self, ask: Callable[..., memoryview], room: Room) -> None:
        self._ask_parent, self._room = ask, room
        self._layers: list[Layer] = []  # of this step's calls

    def begin(self) -> None:
        """See ``StepProducts``."""
        self._layers = []
        self._ask_parent(BeginStep())

    def forward(self, exchange: Forward, x: F32, w: F32) -> F32:
        """See ``StepProducts``."""
        self._layers.append(exchange.layer)
        (y,) = self._ask(exchange, (x, w), exchange.layer.result("forward"))
        return y

    def backward(self, exchange: Backward, dy: F32) -> list[F32]:
        """See ``StepProducts``."""
        layer = self._layers[exchange.call]
        return self._ask(exchange, (dy,), *map(layer.result, exchange.wants))

    def settle(self) -> bool:
        """See ``StepProducts``."""
        return bytes(self._ask_parent(Settle(), room=len(GOES_ON))) == GOES_ON

    def _ask(
        self,
        exchange: Forward | Backward,
        operands: Sequence[F32],
        *shapes: tuple[int, ...],
    ) -> list[F32]:
        length = sum(each.nbytes for each in operands)
        room = max(length, 4 * sum(math.prod(shape) for shape in shapes))
        place, at = np.frombuffer(self._room(room), np.float32), 0
        for each in operands:
            place[at : at + each.size] = each.reshape(-1)
            at += each.size
        return cut_operands(
            bytes(self._ask_parent(exchange, length, room=room)), *shapes
        )


class WorkerEnd:
    """The worker's end; used by any of its threads.

    Args:
        stream: To the parent.
        area: Descriptor of the memory; not used any more once it is mapped.

    Attributes:
        buffers: What both see; also where replies lie, until the next request.
    """

    def __init__(self, stream: int, area: int) -> None:
        self.stream = stream
        self._over = False  # the parent has hung up
        self._turn = threading.Lock()  # a recipe may import in a thread of its own
        self.move(map_area(area, os.fstat(area).st_size))

    def move(self, whole: memoryview) -> None:
        """Go on in another area, from its first request on."""
        self._whole = whole
        self._talk_at = len(whole) - TALK_BYTES
        self.buffers = whole[: self._talk_at]
        self._number = 0

    def await_order(self, *kinds: type, after: object = None) -> object:
        """The next order, ``after`` the answer to the last one.

        Nobody asks between the two: the parent would not hear it.

        Raises:
            PeerError: code ``worker-gone``: the parent is.
        """
        with self._turn:
            if after is not None:
                self._say(after, 0, 0, 0)
            self._await()
            at = self._talk_at + MESSAGE_AT
            raw = bytes(self._whole[at : at + self._head().message_bytes])
        return from_bytes(raw, *kinds, max_bytes=MAX_ORDER_BYTES)

    def ask(
        self, message: object, length: int = 0, *, start: int = 0, room: int = 0
    ) -> memoryview:
        """Ask, and wait for the reply's buffer.

        Args:
            message: What is asked.
            length: Of the buffer that belongs to it.
            start: Where it begins in ``buffers``.
            room: Bytes that the reply may take from there on.

        Raises:
            PeerError: code ``worker-gone``: the parent is, or did not hear this.
        """
        with self._turn:
            self._say(message, start, length, room)
            self._await()
            head = self._head()
            if head.number != self._number or head.message_bytes:
                raise worker_gone()
            return self.buffers[start : start + head.length]

    def answer(self, message: object) -> None:
        """Say how an order went."""
        with self._turn:
            self._say(message, 0, 0, 0)

    def await_end(self, answer: object = None) -> None:
        """Give the last answer, if it is still heard; then wait until the parent hangs up."""
        with suppress(PeerError), self._turn:
            if answer is not None and not self._over:
                self._say(answer, 0, 0, 0)
            self._await()

    def _await(self) -> None:
        self._over = True
        await_bell(self.stream)
        self._over = False

    def _say(self, message: object, start: int, length: int, room: int) -> None:
        raw, at = to_bytes(message), self._talk_at + MESSAGE_AT
        self._whole[at : at + len(raw)] = raw
        self._number += 1
        head = Head(self._number, len(raw), start, length, room)
        HEAD.pack_into(self._whole, self._talk_at + WORKER_AT, *head)
        ring(self.stream)

    def _head(self) -> Head:
        return Head._make(HEAD.unpack_from(self._whole, self._talk_at + PARENT_AT))


def map_shared(descriptor: int, length: int, start: int = 0) -> memoryview:
    """Bytes to read; what the parent writes later is seen here. A write is fatal."""
    return _map(descriptor, length, _READ, mmap.MAP_SHARED, start).toreadonly()


def map_copy(descriptor: int, length: int, start: int = 0) -> memoryview:
    """Bytes to read and change; what is written into them stays here."""
    return _map(descriptor, length, _WRITE, mmap.MAP_PRIVATE, start)


def map_area(descriptor: int, length: int, start: int = 0) -> memoryview:
    """Bytes that the parent reads once they are written."""
    return _map(descriptor, length, _WRITE, mmap.MAP_SHARED, start)


def give_back(address: int, length: int) -> None:
    """Give whole pages back to the kernel: what is private is lost, what is a file's is not."""
    first = address + -address % mmap.PAGESIZE
    last = address + length - (address + length) % mmap.PAGESIZE
    if first < last:
        call("madvise", first, last - first, mmap.MADV_DONTNEED)


def _map(
    descriptor: int, length: int, rights: int, kind: int, start: int = 0
) -> memoryview:
    """Of a file's pages those that the stretch lies in, and no other."""
    before = start % mmap.PAGESIZE
    whole = before + length
    address = call("mmap", None, whole, rights, kind, descriptor, start - before)
    mapped = memoryview((ctypes.c_char * whole).from_address(address)).cast("B")
    return mapped[before:]
