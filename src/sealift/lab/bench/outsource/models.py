"""The models that are measured: VGG-11 as Goten trained it, and two small digit readers.

VGG-11 at CIFAR-10's shape: eight 3x3 convolutions with batch normalisation, five poolings,
three linear layers; 152.7 M multiplications forward an image.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from torch import nn

from sealift.outsource.terms import Layer

CLASSES: Final = 10
_POOL: Final = 0
_WIDTHS: Final = (64, _POOL, 128, _POOL, 256, 256, _POOL, 512, 512, _POOL, 512, 512, 0)
_DENSE: Final = (512, 512)


def vgg11() -> nn.Sequential:
    """Rows of (3, 32, 32)."""
    parts: list[nn.Module] = []
    inputs = 3
    for width in _WIDTHS:
        if width == _POOL:
            parts.append(nn.MaxPool2d(2))
            continue
        convolution = nn.Conv2d(inputs, width, 3, padding=1)
        parts += [convolution, nn.BatchNorm2d(width), nn.ReLU()]
        inputs = width
    parts.append(nn.Flatten())
    for width in _DENSE:
        parts += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*parts, nn.Linear(inputs, CLASSES))


def digits_mlp() -> nn.Sequential:
    """Rows of 64 numbers: the model of CrypTen's recorded step."""
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES))


def digits_cnn() -> nn.Sequential:
    """Rows of (1, 8, 8)."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64, CLASSES),
    )


def vgg11_layers(batch: int) -> tuple[Layer, ...]:
    """Its convolutions and linear layers, in the order of their calls."""
    found = list(_layers(batch))
    return (
        replace(found[0], edge=True),
        *found[1:-1],
        replace(found[-1], edge=True),
    )


def _layers(batch: int) -> Iterator[Layer]:
    inputs, side = 3, 32
    for number, width in enumerate(_WIDTHS, 1):
        if width == _POOL:
            side //= 2
            continue
        yield Layer(
            name=f"conv{number}",
            batch=batch,
            inputs=inputs,
            outputs=width,
            height=side,
            width=side,
            kernel=(3, 3),
            padding=(1, 1),
        )
        inputs = width
    for number, width in enumerate((*_DENSE, CLASSES), 1):
        yield Layer(name=f"fc{number}", batch=batch, inputs=inputs, outputs=width)
        inputs = width
