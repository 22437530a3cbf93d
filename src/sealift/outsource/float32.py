"""Products in float32, made here: what a module's call is where no server is asked.

Operands are copies, as whoever calls may change its own before it asks for gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import conv2d
from torch.nn.grad import conv2d_input, conv2d_weight

from sealift.numeric.loops import F32
from sealift.outsource.terms import Backward, Forward, Layer


class Float32Products:
    """Somebody ``Outsourced`` who is here."""

    def __init__(self) -> None:
        self._calls = 0
        self.operands: dict[int, tuple[Layer, Tensor, Tensor]] = {}

    def forward(self, exchange: Forward, x: F32, w: F32) -> F32:
        """``y``."""
        layer, images, kernel = exchange.layer, _nchw(x), _nchw(w)
        if exchange.later:
            self.operands[self._calls] = layer, images.clone(), kernel.clone()
        self._calls += 1
        y = conv2d(images, kernel, stride=layer.stride, padding=layer.padding)
        return _nhwc(y)

    def backward(self, exchange: Backward, dy: F32) -> list[F32]:
        """The gradients that the exchange wants."""
        layer, x, w = self.operands.pop(exchange.call)
        steps = {"stride": layer.stride, "padding": layer.padding}
        slopes, found = _nchw(dy), []
        if "input" in exchange.wants:
            found.append(conv2d_input(x.shape, w, slopes, **steps))
        if "weight" in exchange.wants:
            found.append(conv2d_weight(x, w.shape, slopes, **steps))
        return [_nhwc(each) for each in found]


def _nchw(array: F32) -> Tensor:
    return torch.from_numpy(array).permute(0, 3, 1, 2)


def _nhwc(tensor: Tensor) -> F32:
    found: F32 = tensor.permute(0, 2, 3, 1).contiguous().numpy()
    return found
