"""Which modules are faster here than by servers: measured on zeros, so that no row decides.

A step of a known form is made of zeros, by the servers and here. What decides is what
everybody may know, the shapes, and how fast this machine, the servers and the way between
them are; servers see those steps, and later that some products are not asked for.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch.nn import functional

from sealift.outsource.convert import Outsourced
from sealift.outsource.terms import Forward, Layer, Tensor
from sealift.outsource.trace import Trace, calls_of

_TENSORS: Final[tuple[Tensor, ...]] = ("x", "w", "dy")
Seconds = Mapping[str, float]  # of each layer, by its name


@dataclass(frozen=True, slots=True)
class LayerSpeed:
    """What a layer's products of one step take.

    Attributes:
        here_s: In float32, by this process.
        served_s: By servers, with rounding, masking and the way.
    """

    here_s: float
    served_s: float

    @property
    def stays(self) -> bool:
        """Whether servers do not pay."""
        return self.served_s >= self.here_s

    def __str__(self) -> str:
        return (
            f"it takes {self.here_s * 1e3:.1f} ms of a step here and "
            f"{self.served_s * 1e3:.1f} ms by servers, measured on zeros"
        )


def seconds_of_zeros(trace: Trace, products: Outsourced) -> Seconds:
    """Make a step of zeros, and say what each layer took."""
    found: dict[str, float] = defaultdict(float)
    layers: list[Layer] = []
    for exchange in trace:
        if isinstance(exchange, Forward):
            layer = exchange.layer
            layers.append(layer)
            x, w = (np.zeros(layer.shape(each), np.float32) for each in _TENSORS[:2])
            began_s = time.perf_counter()
            products.forward(exchange, x, w)
        else:
            layer = layers[exchange.call]
            dy = np.zeros(layer.shape("dy"), np.float32)
            began_s = time.perf_counter()
            products.backward(exchange, dy)
        found[layer.name] += time.perf_counter() - began_s
    return found


def quickest(passes: Iterator[Seconds]) -> Seconds:
    """Of several steps, each layer's shortest time."""
    every = list(passes)
    return {name: min(each[name] for each in every) for name in every[0]}


def seconds_here(trace: Trace, passes: int) -> Seconds:
    """What each layer takes in this process, as PyTorch computes it."""
    return quickest(_pass_here(trace) for _ in range(passes))


def _pass_here(trace: Trace) -> Seconds:
    found: dict[str, float] = defaultdict(float)
    for call in calls_of(trace):
        layer = call.layer
        x, w, dy = (_zeros(layer, tensor) for tensor in _TENSORS)
        wanted = {"input": x, "weight": w}
        began_s = time.perf_counter()
        if layer.is_linear:
            y = functional.linear(x.flatten(1), w.flatten(1)).view(dy.shape)
        else:
            y = functional.conv2d(x, w, stride=layer.stride, padding=layer.padding)
        if call.later:
            torch.autograd.grad(y, [wanted[each] for each in call.later], dy)
        found[layer.name] += time.perf_counter() - began_s
    return found


def _zeros(layer: Layer, tensor: Tensor) -> torch.Tensor:
    """As PyTorch has images, and kernels."""
    batch, height, width, channels = layer.shape(tensor)
    return torch.zeros(batch, channels, height, width, requires_grad=tensor != "dy")
