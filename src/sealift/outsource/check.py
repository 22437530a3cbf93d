"""Is an answer the product, over the integers; and if not, whose answer was wrong.

Freivalds' check modulo 2**64 with coefficients that are drawn once the answer is there. It
uses that a convolution is linear in its batch and in its channels, so that nothing is
done for each tap of a kernel and each image: the batch is added up first, or the channels.
Where the answer differs from the product by less than 2**32 in every number, as Q and the
norms have it, a wrong one passes a repetition with probability 2**-27 at most, and all
three with 2**-81. What was added up modulo Q and wrapped is a wrong answer, too (G5).
A failing row, computed again modulo Q from the shares, names the server with certainty (H9).
Source: spec/shares.md section 5.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from sealift.errors import IntegrityError
from sealift.numeric.kernels import Kernels
from sealift.numeric.residues import I16, I32, I64, U32
from sealift.numeric.windows import Integers, KernelWindow, patches, pieces
from sealift.outsource.quantize import window_of
from sealift.outsource.terms import Direction, Layer

REPETITIONS: Final = 3
PIECE: Final = 1 << 20  # numbers in memory at a time while a server is named
Rows = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """That ``c`` is the product of ``a`` and ``b``.

    Attributes:
        a: ``x`` or ``dy``.
        b: ``w``, or ``x`` for a weight's gradient.
        c: Of the direction's shape.
    """

    layer: Layer
    direction: Direction
    a: I16
    b: I16
    c: I32

    def demand(self, kernels: Kernels) -> None:
        """Demand that it is true.

        Raises:
            IntegrityError: code ``wrong-product``.
        """
        computed, claimed = _SIDES[self.direction](self, kernels)
        if not np.array_equal(computed, claimed):
            raise IntegrityError(
                f"the product of layer {self.layer.name} is wrong",
                why="the servers' answers do not match the operands",
                code="wrong-product",
            )


def _forward(claim: Claim, kernels: Kernels) -> tuple[I64, I64]:
    layer, rho = claim.layer, _draw(claim.layer.batch)
    r = _draw(layer.outputs)
    images = kernels.batch_sums(claim.a.reshape(layer.batch, -1), rho)
    answers = kernels.batch_sums(claim.c.reshape(layer.batch, -1), rho)
    weights = kernels.batch_sums(claim.b.reshape(layer.outputs, -1), r)
    if layer.is_linear:
        return _row_dots(images, weights), _row_dots(answers, r)
    ours, theirs = [], []
    for each in range(REPETITIONS):
        image = images[each].reshape(1, layer.height, layer.width, layer.inputs)
        taps = weights[each].reshape(*layer.kernel, layer.inputs)
        ours.append(_gather(layer, image, taps).ravel())
        theirs.append(
            answers[each].reshape(-1, layer.outputs) @ r[each].astype(np.int64)
        )
    return np.array(ours), np.array(theirs)


def _input(claim: Claim, kernels: Kernels) -> tuple[I64, I64]:
    layer, rho = claim.layer, _draw(claim.layer.batch)
    r = _draw(layer.inputs)
    images = kernels.batch_sums(claim.a.reshape(layer.batch, -1), rho)
    answers = kernels.batch_sums(claim.c.reshape(layer.batch, -1), rho)
    weights = kernels.channel_dots(claim.b.reshape(-1, layer.inputs), r)
    if layer.is_linear:
        return _row_dots(images, weights), _row_dots(answers, r)
    ours, theirs = [], []
    for each in range(REPETITIONS):
        image = images[each].reshape(1, *layer.out, layer.outputs)
        taps = np.moveaxis(weights[each].reshape(layer.outputs, *layer.kernel), 0, -1)
        ours.append(_scatter(layer, image, taps).ravel())
        theirs.append(
            answers[each].reshape(-1, layer.inputs) @ r[each].astype(np.int64)
        )
    return np.array(ours), np.array(theirs)


def _weight(claim: Claim, kernels: Kernels) -> tuple[I64, I64]:
    layer = claim.layer
    rho, r = _draw(layer.outputs), _draw(layer.inputs)
    outer = kernels.channel_dots(claim.a.reshape(-1, layer.outputs), rho)
    inner = kernels.channel_dots(claim.b.reshape(-1, layer.inputs), r)
    answers = kernels.batch_sums(claim.c.reshape(layer.outputs, -1), rho)
    if layer.is_linear:
        return _row_dots(outer, inner), _row_dots(answers, r)
    seen = (REPETITIONS, layer.batch, layer.height, layer.width)
    ours = kernels.tap_sums(
        outer.reshape(REPETITIONS, layer.batch, *layer.out),
        inner.reshape(seen),
        window_of(layer),
    )
    taps = answers.reshape(REPETITIONS, layer.taps, layer.inputs)
    theirs = (taps @ r.astype(np.int64)[:, :, None])[:, :, 0]
    return ours.reshape(REPETITIONS, -1), theirs


_SIDES: Final = {"forward": _forward, "input": _input, "weight": _weight}


def _row_dots(a: I64, b: Integers) -> I64:
    """Each row of one times that of the other, modulo 2**64."""
    return np.asarray((a * b).sum(axis=1))


def _draw(length: int) -> I32:
    """Coefficients, fresh: whoever knew them could answer wrongly and pass."""
    raw = os.urandom(REPETITIONS * length * 4)
    return np.frombuffer(bytearray(raw), np.int32).reshape(REPETITIONS, length)


def _gather(layer: Layer, images: Integers, taps: I64) -> I64:
    """Convolution with one output channel: (N, H, W, C) to (N, *out), modulo 2**64."""
    found = np.zeros((len(images), *layer.out), np.int64)
    window = window_of(layer)
    for row, column, inside, pixels in window.taps(layer.height, layer.width):
        found[:, *inside] += _dots(images[:, *pixels], taps[row, column])
    return found


def _scatter(layer: Layer, images: Integers, taps: I64) -> I64:
    """Its transpose, with one input channel: (N, *out, C) to (N, H, W)."""
    found = np.zeros((len(images), layer.height, layer.width), np.int64)
    window = window_of(layer)
    for row, column, inside, pixels in window.taps(layer.height, layer.width):
        found[:, *pixels] += _dots(images[:, *inside], taps[row, column])
    return found


def _dots(numbers: Integers, r: I64) -> I64:
    """``numbers`` (..., C) times ``r`` modulo 2**64, without a wider copy of them."""
    found: I64 = np.einsum("...c,c->...", numbers, r, dtype=np.int64, casting="safe")
    return found


def find_wrong_row(claim: Claim) -> int | None:
    """A row of ``c`` that is not the product's, as ``c.reshape(rows, -1)`` counts them.

    Each row is looked at by itself, which the quick check does not do. Images are taken
    few at a time: at most ``PIECE`` numbers, or one image, lie in memory in addition.
    """
    if claim.direction == "weight":
        return _first(_weight_rows(claim))
    layer = claim.layer
    r = _wide(layer.outputs if claim.direction == "forward" else layer.inputs)
    if claim.direction == "forward":
        columns = claim.b.reshape(layer.outputs, -1)
        taps = _dots(columns.T, r).reshape(*layer.kernel, layer.inputs)
        walk = _gather
    else:
        taps = np.moveaxis(_dots(claim.b, r), 0, -1)
        walk = _scatter
    at = 0
    for images in _few(layer):
        claimed = _dots(claim.c[images], r)
        wrong = _first(walk(layer, claim.a[images], taps) != claimed)
        if wrong is not None:
            return at + wrong
        at += claimed.size
    return None


def _weight_rows(claim: Claim) -> npt.NDArray[np.bool_]:
    """Which channels of a weight's gradient are wrong."""
    layer = claim.layer
    r = _wide(layer.depth("forward"))
    taps = r.reshape(*layer.kernel, layer.inputs)
    ours = np.zeros(layer.outputs, np.int64)
    for images in _few(layer):
        seen = _gather(layer, claim.b[images], taps).ravel()
        ours += _dots(claim.a[images].reshape(-1, layer.outputs).T, seen)
    return np.asarray(ours != _dots(claim.c.reshape(layer.outputs, -1), r))


def _few(layer: Layer) -> Iterator[slice]:
    """Images whose operands are at most ``PIECE`` numbers; one at least."""
    each = max(math.prod(layer.shape(t)[1:]) for t in ("x", "dy"))
    step = max(1, PIECE // each)
    return (slice(at, at + step) for at in range(0, layer.batch, step))


def _first(wrong: npt.NDArray[np.bool_]) -> int | None:
    found = np.flatnonzero(wrong)
    return int(found[0]) if len(found) else None


def _wide(length: int) -> I64:
    return np.frombuffer(os.urandom(length * 8), np.int64)


ShareOf = Callable[[int, int], U32]
"""A server's share of an operand: the numbers from one place to another, row-major."""


def exact_row(
    layer: Layer,
    direction: Direction,
    shares: tuple[ShareOf, ShareOf],
    row: int,
    modulus: int,
) -> Rows:
    """One row of a server's product modulo Q, as an honest server computes it.

    Of the shares that it follows from, at most ``PIECE`` numbers lie in memory at a time,
    or what one row of places needs.

    Args:
        layer: Its geometry.
        direction: Which product.
        shares: Of the two operands.
        row: As ``find_wrong_row`` counts.
        modulus: Q.
    """
    (a, b), q = shares, np.uint64(modulus)
    if direction == "weight":
        return _weight_row(layer, a, b, row, q)
    seen = (_seen_at if direction == "forward" else _seen_from)(layer, a, row)
    depth = layer.depth("forward")
    total = np.zeros(
        layer.outputs if direction == "forward" else layer.inputs, np.uint64
    )
    step = max(1, PIECE // depth)
    for first in range(0, layer.outputs, step):
        last = min(layer.outputs, first + step)
        rows = b(first * depth, last * depth).astype(np.uint64)
        if direction == "forward":
            total[first:last] = _sum(seen * rows.reshape(-1, depth), q, axis=1)
        else:
            taps = rows.reshape(last - first, layer.taps, layer.inputs)
            ours = seen.reshape(layer.taps, layer.outputs)[:, first:last]
            total += _sum(ours.T[:, :, None] * taps, q, axis=(0, 1))
    return np.asarray(total % q)


def _weight_row(layer: Layer, dy: ShareOf, x: ShareOf, row: int, q: np.uint64) -> Rows:
    """The gradients of one output channel."""
    window, depth = window_of(layer), layer.depth("forward")
    (down, across), wide = layer.out, layer.width * layer.inputs
    total = np.zeros(depth, np.uint64)
    most = PIECE // max(1, -(-layer.outputs // depth))
    for piece in pieces(window, layer.shape("x"), most):
        images, (rows, columns), (high, pixels) = (
            piece.images,
            piece.places,
            piece.pixels,
        )
        few = images.stop - images.start
        start = (images.start * layer.height + high.start) * wide
        length = ((few - 1) * layer.height + high.stop - high.start) * wide
        # Of several images a piece has all rows; else it has some rows of one.
        seen = x(start, start + length).reshape(few, -1, layer.width, layer.inputs)
        start = (images.start * down + rows.start) * across * layer.outputs
        length = ((few - 1) * down + rows.stop - rows.start) * across * layer.outputs
        slopes = dy(start, start + length).reshape(few, -1, across, layer.outputs)
        ours = slopes[:, :, columns, row].ravel().astype(np.uint64)
        padded = np.pad(seen[:, :, pixels], ((0, 0), *piece.zeros, (0, 0)))
        found = np.empty((len(ours), depth), np.uint32)
        patches(padded, KernelWindow(layer.kernel, layer.stride), found)
        total += _sum(ours[:, None] * found.astype(np.uint64), q, axis=0)
    return np.asarray(total % q)


def _sum(products: Rows, q: np.uint64, axis: int | tuple[int, ...]) -> Rows:
    """Products of two shares, added up modulo Q: each is below 2**64."""
    products %= q
    return np.asarray(products.sum(axis=axis) % q)


def _seen_at(layer: Layer, x: ShareOf, row: int) -> Rows:
    """What the kernel sees at the place with this number: (depth)."""
    image, place = divmod(row, layer.out[0] * layer.out[1])
    top, left = (
        at * s - p
        for at, s, p in zip(
            divmod(place, layer.out[1]), layer.stride, layer.padding, strict=True
        )
    )
    found = np.zeros((*layer.kernel, layer.inputs), np.uint64)
    first, last = max(0, left), min(layer.width, left + layer.kernel[1])
    for tap in range(layer.kernel[0]):
        if 0 <= top + tap < layer.height:
            line = (image * layer.height + top + tap) * layer.width
            run = x((line + first) * layer.inputs, (line + last) * layer.inputs)
            found[tap, first - left : last - left] = run.reshape(-1, layer.inputs)
    return found.ravel()


def _seen_from(layer: Layer, dy: ShareOf, row: int) -> Rows:
    """What the pixel with this number is reached by: (taps * outputs)."""
    image, pixel = divmod(row, layer.height * layer.width)
    at = divmod(pixel, layer.width)
    found = np.zeros((*layer.kernel, layer.outputs), np.uint64)
    for tap in np.ndindex(*layer.kernel):
        steps = [
            divmod(side + p - k, s)
            for side, p, k, s in zip(at, layer.padding, tap, layer.stride, strict=True)
        ]
        inside = (0 <= n < out for (n, _), out in zip(steps, layer.out, strict=True))
        if all(inside) and not any(rest for _, rest in steps):
            line = image * layer.out[0] + steps[0][0]
            place = (line * layer.out[1] + steps[1][0]) * layer.outputs
            found[tap] = dy(place, place + layer.outputs)
    return found.ravel()
