"""Exact products of integers in place: the reference that servers' answers equal.

In float64, which holds every partial sum exactly: operands are below 2**13, and their
products' sums below 2**31. For rehearsals, for ``local``, and for whoever replays a step.
Source: spec/shares.md section 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from sealift.numeric.loops import F32, I16
from sealift.numeric.windows import patches
from sealift.outsource.quantize import window_of
from sealift.outsource.terms import Backward, Direction, Forward, Layer
from sealift.outsource.trace import StepKind

Exact = npt.NDArray[np.float64]
PIECE: Final = 1 << 22  # numbers of windows that lie in memory at once


class PlainProducts:
    """Products without servers."""

    def begin(self, kind: StepKind, step: int) -> None:
        """A step begins."""
        self._calls: list[tuple[Layer, I16, I16]] = []

    def forward(self, exchange: Forward, x: I16, w: I16, scale: float) -> F32:
        """``y`` of a call, times a scale."""
        self._calls.append((exchange.layer, x, w))
        return scaled(product(exchange.layer, "forward", x, w), scale)

    def backward(
        self, exchange: Backward, dy: I16, scales: tuple[float, ...]
    ) -> list[F32]:
        """The gradients of a call that are asked for, each times its scale."""
        layer, x, w = self._calls[exchange.call]
        operands: dict[Direction, I16] = {"input": w, "weight": x}
        return [
            scaled(product(layer, each, dy, operands[each]), scale)
            for each, scale in zip(exchange.wants, scales, strict=True)
        ]

    def settle(self) -> None:
        """Nobody answered but this process."""
        self._calls = []


def product(layer: Layer, direction: Direction, a: I16, b: I16) -> Exact:
    """The product of two operands, as whole numbers, of its direction's shape."""
    width = layer.depth("forward")
    out = np.zeros(layer.result(direction))
    flat = b.reshape(-1, width).astype(np.float64) if direction != "weight" else None
    for piece in _pieces(layer):
        if flat is None:
            rows = a[piece].reshape(-1, layer.outputs).astype(np.float64)
            out.reshape(-1, width)[:] += rows.T @ _seen(layer, b[piece])
        elif direction == "forward":
            seen = _seen(layer, a[piece])
            out[piece].reshape(-1, layer.outputs)[:] = seen @ flat.T
        else:
            rows = a[piece].reshape(-1, layer.outputs).astype(np.float64)
            _spread(layer, rows @ flat, out[piece])
    return out


def scaled(whole: Exact, scale: float) -> F32:
    """As a product's numbers leave: multiplied in float64, rounded once."""
    with np.errstate(over="ignore"):
        found: F32 = (whole * scale).astype(np.float32)
    return found


def _pieces(layer: Layer) -> Iterator[slice]:
    """Images that are worked on at once."""
    each = layer.out[0] * layer.out[1] * layer.depth("forward")
    step = max(1, PIECE // each)
    return (slice(at, at + step) for at in range(0, layer.batch, step))


def _seen(layer: Layer, images: I16) -> Exact:
    """What the kernel sees at each place of each image."""
    places = len(images) * layer.out[0] * layer.out[1]
    found = np.empty((places, layer.depth("forward")), np.int16)
    patches(images, window_of(layer), found)
    return found.astype(np.float64)


def _spread(layer: Layer, columns: Exact, out: Exact) -> None:
    """Add up, at each pixel, what every tap that sees it brings."""
    shape = (len(out), *layer.out, *layer.kernel, layer.inputs)
    brought = columns.reshape(shape)
    taps = window_of(layer).taps(layer.height, layer.width)
    for row, column, inside, pixels in taps:
        out[:, *pixels] += brought[:, *inside, row, column]
