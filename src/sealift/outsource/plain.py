"""Exact products of integers in place: the reference that servers' answers equal.

In float64, which holds every partial sum exactly: operands are below 2**13, and their
products' sums below 2**31. For rehearsals, for ``local``, and for whoever replays a step.
Source: spec/shares.md section 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from sealift.numeric.residues import F32, I16
from sealift.numeric.windows import KernelWindow, WindowPiece, patches, pieces
from sealift.outsource.quantize import window_of
from sealift.outsource.terms import Backward, Direction, Forward, Layer
from sealift.outsource.trace import StepKind

Exact = npt.NDArray[np.float64]
PIECE: Final = 1 << 22  # numbers of windows that lie in memory at once


Between = Callable[[], None]


def _nothing() -> None:
    """For whoever is not to be interrupted."""


class PlainProducts:
    """Products without servers.

    Args:
        between: Called before each piece of the work; what it raises ends the work.
    """

    _between: Between = staticmethod(_nothing)
    asked_s, crossed_bytes = 0.0, 0  # of servers, which there are none of

    def __init__(self, between: Between = _nothing) -> None:
        self._between = between

    def begin(self, kind: StepKind, step: int) -> None:
        """A step begins."""
        self._calls: list[tuple[Layer, I16, I16]] = []

    def forward(self, exchange: Forward, x: I16, w: I16, scale: float) -> F32:
        """``y`` of a call, times a scale."""
        self._calls.append((exchange.layer, x, w))
        return scaled(product(exchange.layer, "forward", x, w, self._between), scale)

    def backward(
        self, exchange: Backward, dy: I16, scales: tuple[float, ...]
    ) -> list[F32]:
        """The gradients of a call that are asked for, each times its scale."""
        layer, x, w = self._calls[exchange.call]
        operands: dict[Direction, I16] = {"input": w, "weight": x}
        return [
            scaled(product(layer, each, dy, operands[each], self._between), scale)
            for each, scale in zip(exchange.wants, scales, strict=True)
        ]

    def settle(self) -> None:
        """Nobody answered but this process."""
        self._calls = []


def product(
    layer: Layer, direction: Direction, a: I16, b: I16, between: Between = _nothing
) -> Exact:
    """The product of two operands, as whole numbers, of its direction's shape.

    Args:
        layer: Its geometry.
        direction: Which product.
        a: ``x`` or ``dy``.
        b: ``w``, or ``x`` for a weight's gradient.
        between: Called before each piece of the work.
    """
    if direction == "weight":
        return _weight(layer, a, b, between)
    out = np.zeros(layer.result(direction))
    kernels = b.reshape(-1, layer.depth("forward")).astype(np.float64)
    for piece in _pieces(layer):
        between()
        here = piece.images, *piece.places
        if direction == "forward":
            found = _seen(layer, piece, a) @ kernels.T
            out[here] = found.reshape(out[here].shape)
        else:
            rows = a[here].reshape(-1, layer.outputs).astype(np.float64)
            _spread(layer, piece, rows @ kernels, out)
    return out


def _weight(layer: Layer, dy: I16, x: I16, between: Between) -> Exact:
    out = np.zeros((layer.outputs, layer.depth("forward")))
    for piece in _pieces(layer):
        between()
        rows = dy[piece.images, *piece.places].reshape(-1, layer.outputs)
        out += rows.T.astype(np.float64) @ _seen(layer, piece, x)
    return out.reshape(layer.shape("w"))


def scaled(whole: Exact, scale: float) -> F32:
    """As a product's numbers leave: multiplied in float64, rounded once."""
    with np.errstate(over="ignore"):
        found: F32 = (whole * scale).astype(np.float32)
    return found


def _pieces(layer: Layer) -> Iterator[WindowPiece]:
    """Places that are worked on at once: fewer where each has many products."""
    most = PIECE // max(1, layer.outputs >> 10)
    return pieces(window_of(layer), layer.shape("x"), most)


def _seen(layer: Layer, piece: WindowPiece, images: I16) -> Exact:
    """What the kernel sees at each place of a piece."""
    padded = piece.padded(images)
    window = KernelWindow(layer.kernel, layer.stride)
    places = len(padded) * math.prod(window.out(*padded.shape[1:3]))
    found = np.empty((places, layer.depth("forward")), np.int16)
    patches(padded, window, found)
    return found.astype(np.float64)


def _spread(layer: Layer, piece: WindowPiece, columns: Exact, out: Exact) -> None:
    """Add up, at each pixel, what every tap that sees it brings."""
    room = np.zeros_like(piece.padded(out))
    window = KernelWindow(layer.kernel, layer.stride)
    places = window.out(*room.shape[1:3])
    brought = columns.reshape(len(room), *places, *layer.kernel, layer.inputs)
    for row, column, inside, pixels in window.taps(*room.shape[1:3]):
        room[:, *pixels] += brought[:, *inside, row, column]
    inner = (
        slice(before, side - behind)
        for (before, behind), side in zip(piece.zeros, room.shape[1:3], strict=True)
    )
    out[piece.images, *piece.pixels] += room[:, *inner]
