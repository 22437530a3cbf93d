"""Goten's own server products, for a fair ratio in the same program; nowhere else.

Shares are integers modulo the prime 2**21 - 9, centred, in float64. Its artifact has one
server compute A0*F + E*B0 - E*F, one A1*F + E*B1, one U*V: three products, two, one. A
float64 holds such a product exactly while q^2 k < 2**53; beyond that depth the published
code went on and wrapped. Nothing is split here either, so this is what it took.
Source: Ng et al., "Goten", AAAI 2021, section 4 and its artifact.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import conv2d
from torch.nn.grad import conv2d_input, conv2d_weight

from sealift.outsource.terms import OPERANDS, Direction, Layer

PRIME: Final = (1 << 21) - 9
PRODUCTS: Final = {"S0": 3, "S1": 2, "S2": 1}


class GotenServer:
    """The busiest server, S0, of one call of a layer.

    Args:
        layer: Its geometry.
        direction: Which of the call's products.
    """

    def __init__(self, layer: Layer, direction: Direction) -> None:
        self._layer, self._direction = layer, direction
        batch, *sides, channels = layer.result(direction)
        self._result = (batch, channels, *sides)
        a, b = OPERANDS[direction]
        self._a0, self._e = (_share(layer.shape(a)) for _ in range(2))
        self._b0, self._f = (_share(layer.shape(b)) for _ in range(2))

    def answer(self) -> Tensor:
        """Its three products, added up and reduced."""
        total = self._product(self._a0, self._f)
        total += self._product(self._e, self._b0)
        total -= self._product(self._e, self._f)
        total -= PRIME * torch.round(total / PRIME)
        return total

    def _product(self, a: Tensor, b: Tensor) -> Tensor:
        layer = self._layer
        if layer.taps == 1 and layer.stride == (1, 1):
            return self._dense(a.flatten(0, 2), b)
        if self._direction == "weight":
            a, b = b, a  # x comes first
        return self._conv(_nchw(a), _nchw(b))

    def _conv(self, a: Tensor, b: Tensor) -> Tensor:
        steps = {"stride": self._layer.stride, "padding": self._layer.padding}
        match self._direction:
            case "forward":
                return conv2d(a, b, **steps)
            case "input":
                return conv2d_input(self._result, b, a, **steps)
            case "weight":
                return conv2d_weight(a, self._result, b, **steps)

    def _dense(self, a: Tensor, b: Tensor) -> Tensor:
        match self._direction:
            case "forward":
                return a @ b.flatten(1).T
            case "input":
                return a @ b.flatten(1)
            case "weight":
                return a.T @ b.flatten(0, 2)


def _share(shape: tuple[int, ...]) -> Tensor:
    half = PRIME // 2
    return torch.randint(-half, half + 1, shape).to(torch.float64)


def _nchw(tensor: Tensor) -> Tensor:
    return tensor.permute(0, 3, 1, 2)
