"""An exchange under way: shares that leave as they are masked, answers opened as they come.

A large tensor crosses in parts of ``PART`` numbers, so that masking, sealing, the way, the
servers' work, opening and unmasking go on at once, each on cores of its own.
Source: spec/shares.md section 7.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakValueDictionary

import numpy as np

from sealift.errors import MalformedError
from sealift.numeric.kernels import PART, Kernels, kernel_threads
from sealift.numeric.residues import F32, I32, U32, Answers, ResidueBasis

MOST_IDLE_BYTES: Final = 1 << 30
_FITS: Final = 4  # a room is used for what is that much smaller at most
Arrived = Callable[[int, slice, Answers], None]
"""Called once for each part of each product, when all three have answered it, by any thread."""


@dataclass(frozen=True, slots=True)
class MaskedShares:
    """What P and M get of an operand, and what makes Z's.

    Attributes:
        plus: P's numbers, row-major.
        minus: M's.
        parts: Of each ``PART`` numbers when they are there; none where all are.
    """

    plus: U32
    minus: U32
    seed: bytes = field(repr=False)
    parts: Sequence[Future[None]] = ()

    def wait(self) -> None:
        """Until all numbers are there."""
        for part in self.parts:
            part.result()


class ProductOpening:
    """A product whose answers come.

    Args:
        shape: Of the product.
        basis: Its modulus.
        scale: Of the numbers that leave.
        kernels: Compute, each call on one core.

    Attributes:
        ints: The product.
        floats: That times the scale.
        are_shares: Whether every number that came is below the modulus.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        basis: ResidueBasis,
        scale: float,
        kernels: Kernels,
    ) -> None:
        self.ints: I32 = np.empty(shape, np.int32)
        self.floats: F32 = np.empty(shape, np.float32)
        self.are_shares = True
        self._basis, self._scale = basis, scale
        self._kernels = kernels
        self._parts: list[Future[None]] = []

    def take(self, here: slice, answers: Answers) -> None:
        """Open a part; a large product's parts by other threads."""
        if self.ints.size <= PART:
            self._open(here, answers)
        else:
            threads = kernel_threads()
            self._parts.append(threads.submit(self._open, here, answers))

    def wait(self) -> None:
        """Until all parts that were taken are open."""
        for part in self._parts:
            part.result()

    def _open(self, here: slice, answers: Answers) -> None:
        p, m, z = answers
        ints, floats = self.ints.reshape(-1)[here], self.floats.reshape(-1)[here]
        try:
            self._kernels.unmask(
                (p[here], m[here], z[here]), self._basis, self._scale, ints, floats
            )
        except MalformedError:
            self.are_shares = False


class Rooms:
    """Memory of large shares and answers, used again: new memory costs as much as masking.

    What is never given back, as after an exchange that failed, is freed with its last view.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[U32] = []
        self._lent: WeakValueDictionary[int, U32] = WeakValueDictionary()

    def take(self, numbers: int) -> U32:
        """Memory for so many numbers; what is in it is anything."""
        if numbers < PART:
            return np.empty(numbers, np.uint32)
        with self._lock:
            sizes = [(room.size, n) for n, room in enumerate(self._free)]
            fits = (each for each in sizes if numbers <= each[0] <= _FITS * numbers)
            best = min(fits, default=None)
            room = self._free.pop(best[1]) if best else np.empty(numbers, np.uint32)
            self._lent[id(room)] = room
        return room[:numbers]

    def give(self, *taken: U32) -> None:
        """Nobody uses them any more."""
        large = [each for each in taken if each.base is not None]
        if not large:
            return
        with self._lock:
            for each in large:
                room = self._lent.pop(id(each.base), None)
                if room is not None:
                    self._free.append(room)
            while sum(each.nbytes for each in self._free) > MOST_IDLE_BYTES:
                self._free.pop(0)


class AnswerTally:
    """Tells which part of which product all of several servers have answered.

    Args:
        servers: How many there are.
        answers: Of each product, as they are filled.
        arrived: Told so.
    """

    def __init__(
        self, servers: int, answers: Sequence[Answers], arrived: Arrived
    ) -> None:
        self._servers, self._answers, self._arrived = servers, answers, arrived
        self._lock = threading.Lock()
        self._counted: dict[tuple[int, int], int] = {}

    def count(self, product: int, here: slice) -> None:
        """One more server has answered this part."""
        with self._lock:
            found = self._counted.get((product, here.start), 0) + 1
            self._counted[product, here.start] = found
        if found == self._servers:
            self._arrived(product, here, self._answers[product])
