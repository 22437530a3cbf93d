"""Where the taps of a convolution's kernel fall on an image (N, H, W, C).

Source: spec/shares.md section 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.signedinteger[Any] | np.unsignedinteger[Any]]
Index = npt.NDArray[np.int64]
N = TypeVar("N", bound=np.number[Any])


@dataclass(frozen=True, slots=True)
class KernelWindow:
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
        places = self._places(axis, side)
        first = max(0, -((tap - padding) // stride))
        last = min(places, (side - 1 + padding - tap) // stride + 1)
        return first, max(first, last), first * stride + tap - padding

    def seen_from(self, axis: int, side: int) -> tuple[Index, Index]:
        """Along one axis: first and last + 1 pixel that each place sees."""
        places = np.arange(self._places(axis, side), dtype=np.int64)
        first = places * self.stride[axis] - self.padding[axis]
        return first.clip(0, side), (first + self.kernel[axis]).clip(0, side)

    def seen_by(self, axis: int, side: int) -> tuple[Index, Index]:
        """Along one axis: first and last + 1 place that sees each pixel."""
        stride, places = self.stride[axis], self._places(axis, side)
        pixels = np.arange(side, dtype=np.int64) + self.padding[axis]
        end = (pixels // stride + 1).clip(0, places)
        first = -((self.kernel[axis] - 1 - pixels) // stride)
        return np.minimum(first.clip(0, places), end), end

    def _places(self, axis: int, side: int) -> int:
        padded = side + 2 * self.padding[axis]
        return (padded - self.kernel[axis]) // self.stride[axis] + 1

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


@dataclass(frozen=True, slots=True)
class WindowPiece:
    """Places of some images that are worked on at once, and the pixels that they see.

    Attributes:
        images: Which ones.
        places: Rows and columns of places.
        pixels: Rows and columns of pixels.
        zeros: How many lie before and behind these, in rows and in columns.
    """

    images: slice
    places: Cut
    pixels: Cut
    zeros: tuple[tuple[int, int], tuple[int, int]]

    def padded(self, images: npt.NDArray[N]) -> npt.NDArray[N]:
        """A copy of what the places see, with the zeros around it."""
        seen = images[self.images, *self.pixels]
        return np.pad(seen, ((0, 0), *self.zeros, (0, 0)))


def pieces(
    window: KernelWindow, shape: tuple[int, ...], most: int
) -> Iterator[WindowPiece]:
    """Cut the places of images (N, H, W, C) into pieces, in their order.

    Args:
        window: Kernel, and how it walks.
        shape: Of the images.
        most: Numbers that the kernel sees in all places of a piece; one place at least.
    """
    batch, height, width, channels = shape
    down, across = window.out(height, width)
    places = max(1, most // (window.kernel[0] * window.kernel[1] * channels))
    columns = min(across, places)
    rows = max(1, min(down, places // across))
    images = max(1, places // (down * across))
    for image in range(0, batch, images):
        for top in range(0, down, rows):
            row = slice(top, min(down, top + rows))
            for left in range(0, across, columns):
                column = slice(left, min(across, left + columns))
                high, above = _pixels(window, 0, row, height)
                wide, beside = _pixels(window, 1, column, width)
                yield WindowPiece(
                    slice(image, min(batch, image + images)),
                    (row, column),
                    (high, wide),
                    (above, beside),
                )


def _pixels(
    window: KernelWindow, axis: int, places: slice, side: int
) -> tuple[slice, tuple[int, int]]:
    """What these places see along one axis, and the zeros before and behind it."""
    stride = window.stride[axis]
    first = places.start * stride - window.padding[axis]
    last = (places.stop - 1) * stride - window.padding[axis] + window.kernel[axis]
    inside = slice(max(0, first), min(side, last))
    return inside, (max(0, -first), max(0, last - side))


def patches(images: Integers, window: KernelWindow, out: Integers) -> None:
    """What the kernel sees at each place: ``out`` is (N * places, kh * kw * C)."""
    batch, height, width, channels = images.shape
    places = window.out(height, width)
    seen = out.reshape(batch, *places, *window.kernel, channels)
    for row, column, inside, pixels in window.taps(height, width):
        if any(window.padding):
            seen[:, :, :, row, column] = 0
        seen[:, *inside, row, column] = images[:, *pixels]
