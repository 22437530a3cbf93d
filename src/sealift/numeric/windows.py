"""Where the taps of a convolution's kernel fall on an image (N, H, W, C).

Source: spec/shares.md section 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.signedinteger[Any] | np.unsignedinteger[Any]]


@dataclass(frozen=True, slots=True)
class Window:
    """A kernel and how it walks: each (along the height, along the width)."""

    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)

    def out(self, height: int, width: int) -> tuple[int, int]:
        """Places of the kernel on an image."""
        sides = zip(
            (height, width), self.kernel, self.stride, self.padding, strict=True
        )
        down, across = ((side + 2 * p - k) // s + 1 for side, k, s, p in sides)
        return down, across

    def reach(self, axis: int, tap: int, side: int) -> tuple[int, int, int]:
        """Of a tap along one axis: first and last + 1 place inside, first pixel."""
        stride, padding = self.stride[axis], self.padding[axis]
        places = (side + 2 * padding - self.kernel[axis]) // stride + 1
        first = max(0, -((tap - padding) // stride))
        last = min(places, (side - 1 + padding - tap) // stride + 1)
        return first, max(first, last), first * stride + tap - padding

    def taps(self, height: int, width: int) -> Iterator[tuple[int, int, Cut, Cut]]:
        """Of each tap: its row and column, places inside, and the pixels there."""
        for row in range(self.kernel[0]):
            down = self._slices(0, row, height)
            for column in range(self.kernel[1]):
                across = self._slices(1, column, width)
                yield row, column, (down[0], across[0]), (down[1], across[1])

    def _slices(self, axis: int, tap: int, side: int) -> tuple[slice, slice]:
        first, last, pixel = self.reach(axis, tap, side)
        stride = self.stride[axis]
        end = pixel + (last - first - 1) * stride + 1 if last > first else pixel
        return slice(first, last), slice(pixel, end, stride)


Cut = tuple[slice, slice]


def patches(images: Integers, window: Window, out: Integers) -> None:
    """What the kernel sees at each place: ``out`` is (N * places, kh * kw * C)."""
    batch, height, width, channels = images.shape
    places = window.out(height, width)
    seen = out.reshape(batch, *places, *window.kernel, channels)
    for row, column, inside, pixels in window.taps(height, width):
        if any(window.padding):
            seen[:, :, :, row, column] = 0
        seen[:, *inside, row, column] = images[:, *pixels]
