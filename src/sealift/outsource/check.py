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

import os
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from sealift.errors import IntegrityError
from sealift.numeric.kernels import Kernels
from sealift.numeric.loops import I16, I32, I64, U32
from sealift.numeric.windows import Integers, patches
from sealift.outsource.quantize import window_of
from sealift.outsource.terms import Direction, Layer

REPETITIONS: Final = 3
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
                f"a product of {self.layer.name} is wrong",
                why="the answers do not add up to what was asked for",
                code="wrong-product",
            )


def _forward(claim: Claim, kernels: Kernels) -> tuple[I64, I64]:
    layer, rho = claim.layer, _draw(claim.layer.batch)
    r = _draw(layer.outputs)
    images = kernels.batch_sums(claim.a.reshape(layer.batch, -1), rho)
    answers = kernels.batch_sums(claim.c.reshape(layer.batch, -1), rho)
    weights = kernels.batch_sums(claim.b.reshape(layer.outputs, -1), r)
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
    seen = (REPETITIONS, layer.batch, layer.height, layer.width)
    ours = kernels.tap_sums(
        outer.reshape(REPETITIONS, layer.batch, *layer.out),
        inner.reshape(seen),
        window_of(layer),
    )
    answers = kernels.batch_sums(claim.c.reshape(layer.outputs, -1), rho)
    taps = answers.reshape(REPETITIONS, layer.taps, layer.inputs)
    theirs = (taps @ r.astype(np.int64)[:, :, None])[:, :, 0]
    return ours.reshape(REPETITIONS, -1), theirs


_SIDES: Final = {"forward": _forward, "input": _input, "weight": _weight}


def _draw(length: int) -> I32:
    """Coefficients, fresh: whoever knew them could answer wrongly and pass."""
    raw = os.urandom(REPETITIONS * length * 4)
    return np.frombuffer(bytearray(raw), np.int32).reshape(REPETITIONS, length)


def _gather(layer: Layer, images: Integers, taps: I64) -> I64:
    """Convolution with one output channel: (N, H, W, C) to (N, *out), modulo 2**64."""
    found = np.zeros((len(images), *layer.out), np.int64)
    window = window_of(layer)
    for row, column, inside, pixels in window.taps(layer.height, layer.width):
        found[:, *inside] += images[:, *pixels].astype(np.int64) @ taps[row, column]
    return found


def _scatter(layer: Layer, images: Integers, taps: I64) -> I64:
    """Its transpose, with one input channel: (N, *out, C) to (N, H, W)."""
    found = np.zeros((len(images), layer.height, layer.width), np.int64)
    window = window_of(layer)
    for row, column, inside, pixels in window.taps(layer.height, layer.width):
        found[:, *pixels] += images[:, *inside].astype(np.int64) @ taps[row, column]
    return found


def find_wrong_row(claim: Claim) -> int | None:
    """A row of ``c`` that is not the product's, as ``c.reshape(rows, -1)`` counts them.

    Each row is looked at by itself, which the quick check does not do.
    """
    layer = claim.layer
    c = claim.c.reshape(-1, claim.c.shape[-1]).astype(np.int64)
    match claim.direction:
        case "forward":
            r = _wide(layer.outputs)
            weights = claim.b.reshape(layer.outputs, -1).astype(np.int64)
            taps = (r @ weights).reshape(*layer.kernel, layer.inputs)
            ours = _gather(layer, claim.a, taps).ravel()
        case "input":
            r = _wide(layer.inputs)
            dots = claim.b.reshape(-1, layer.inputs).astype(np.int64) @ r
            taps = np.moveaxis(dots.reshape(layer.outputs, *layer.kernel), 0, -1)
            ours = _scatter(layer, claim.a, taps).ravel()
        case _:  # of the weight
            r = _wide(layer.depth("forward"))
            taps = r.reshape(*layer.kernel, layer.inputs)
            seen = _gather(layer, claim.b, taps).ravel()
            ours = claim.a.reshape(-1, layer.outputs).T.astype(np.int64) @ seen
            c = c.reshape(layer.outputs, -1)
    wrong = np.flatnonzero(ours != c @ r)
    return int(wrong[0]) if len(wrong) else None


def _wide(length: int) -> I64:
    return np.frombuffer(os.urandom(length * 8), np.int64)


def exact_row(
    layer: Layer, direction: Direction, shares: tuple[U32, U32], row: int, modulus: int
) -> Rows:
    """One row of a server's product modulo Q, as an honest server computes it.

    Args:
        shares: Of the two operands, of their shapes.
        row: As ``find_wrong_row`` counts.
    """
    first, second = _matrices(layer, direction, *shares, row)
    wide, columns = first.astype(np.uint64), second.astype(np.uint64)
    q = np.uint64(modulus)
    return np.asarray((wide[:, None] % q * (columns % q) % q).sum(axis=0) % q)


def _matrices(
    layer: Layer, direction: Direction, a: U32, b: U32, row: int
) -> tuple[U32, U32]:
    places = layer.out[0] * layer.out[1]
    match direction:
        case "forward":
            image, place = divmod(row, places)
            seen = np.empty((places, layer.depth("forward")), a.dtype)
            patches(a[image : image + 1], window_of(layer), seen)
            return seen[place], b.reshape(layer.outputs, -1).T
        case "weight":
            seen = np.empty((layer.batch * places, layer.depth("forward")), b.dtype)
            patches(b, window_of(layer), seen)
            return a.reshape(-1, layer.outputs)[:, row], seen
        case "input":
            return _seen_from(layer, a, row), np.moveaxis(b, 0, 2).reshape(
                -1, layer.inputs
            )


def _seen_from(layer: Layer, dy: U32, row: int) -> U32:
    """What the pixel with this number is reached by: (taps * outputs)."""
    image, pixel = divmod(row, layer.height * layer.width)
    at = divmod(pixel, layer.width)
    found = np.zeros((*layer.kernel, layer.outputs), dy.dtype)
    for tap in np.ndindex(*layer.kernel):
        steps = [
            divmod(side + p - k, s)
            for side, p, k, s in zip(at, layer.padding, tap, layer.stride, strict=True)
        ]
        inside = (0 <= n < out for (n, _), out in zip(steps, layer.out, strict=True))
        if all(inside) and not any(rest for _, rest in steps):
            found[tap] = dy[image, steps[0][0], steps[1][0]]
    return found.ravel()
