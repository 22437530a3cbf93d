"""The models that are measured: VGG-11 as Goten trained it, its images, three digit readers.

VGG-11 at CIFAR-10's shape: eight 3x3 convolutions with batch normalisation, five poolings,
three linear layers; 152.7 M multiplications forward an image.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.nn.functional import relu, scaled_dot_product_attention

from sealift.errors import UsageError
from sealift.outsource.terms import Layer

CLASSES: Final = 10
CIFAR10: Final = "SEALIFT_CIFAR10"
CIFAR10_FILE: Final = "data_batch_1.bin"  # rows: a label, then 3 x 32 x 32 pixels
_SHAPE: Final = (3, 32, 32)
_POOL: Final = 0
_WIDTHS: Final = (64, _POOL, 128, _POOL, 256, 256, _POOL, 512, 512, _POOL, 512, 512, 0)
_DENSE: Final = (512, 512)
_WIDE: Final = 32


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


class DigitsTransformer(nn.Module):
    """Rows of (8, 8): each row of pixels is a token; two layers, four heads, 32 wide.

    Attention's two products, softmax, norms and the table of places are made here.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Linear(8, _WIDE), nn.Embedding(8, _WIDE)
        self.layers = nn.ModuleList(_TransformerLayer() for _ in range(2))
        self.head = nn.Linear(_WIDE, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        found = self.tokens(x) + self.places.weight
        for layer in self.layers:
            found = layer(found)
        logits: torch.Tensor = self.head(found.mean(1))
        return logits


class _TransformerLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(_WIDE) for _ in range(2))
        self.asked, self.joined = nn.Linear(_WIDE, 3 * _WIDE), nn.Linear(_WIDE, _WIDE)
        self.wide, self.narrow = nn.Linear(_WIDE, 64), nn.Linear(64, _WIDE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same shape."""
        asked = self.asked(self.norms[0](x)).unflatten(-1, (3, 4, -1))
        heads = asked.permute(2, 0, 3, 1, 4).unbind()
        seen = scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
        x = x + self.joined(seen)
        added: torch.Tensor = self.narrow(relu(self.wide(self.norms[1](x))))
        return x + added


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


@dataclass(frozen=True, slots=True)
class RealImages:
    """A batch of CIFAR-10's shape, from 0 to 1, and its labels.

    Attributes:
        what: Whose they are.
    """

    what: str
    x: torch.Tensor
    y: torch.Tensor


def read_images(count: int) -> RealImages:
    """Of the folder that ``SEALIFT_CIFAR10`` names; else photographs, labelled by lot.

    Raises:
        UsageError: if it is no folder of CIFAR-10's binary version.
    """
    if folder := os.environ.get(CIFAR10):
        what, (x, y) = "CIFAR-10", _read_cifar10(Path(folder, CIFAR10_FILE))
    else:
        what, x = "scikit-learn's photographs", _photographs()
        y = torch.randint(CLASSES, (len(x),))
    chosen = torch.arange(count) % len(x)
    return RealImages(what, x[chosen].contiguous(), y[chosen])


def _read_cifar10(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    try:
        raw = np.fromfile(path, np.uint8)
    except OSError as error:
        raise _no_cifar10(f"{path}: {error.strerror}") from None
    row = 1 + prod(_SHAPE)
    if not raw.size or raw.size % row:
        raise _no_cifar10(f"{path} has {raw.size} bytes, no whole rows of {row}")
    labels, pixels = np.split(raw.reshape(-1, row), [1], axis=1)
    if labels.max() >= CLASSES:
        raise _no_cifar10(f"{path} has a label of {labels.max()}")
    x = torch.from_numpy(pixels.reshape(-1, *_SHAPE) / np.float32(255))
    return x, torch.from_numpy(labels[:, 0].astype(np.int64))


def _no_cifar10(why: str) -> UsageError:
    fix = "Name the folder cifar-10-batches-bin, of the binary version"
    return UsageError(f"{CIFAR10} names no CIFAR-10", why=why, fix=fix)


def _photographs() -> torch.Tensor:
    """Those that scikit-learn brings, in pieces of CIFAR-10's shape."""
    photographs: Any = import_module("sklearn.datasets").load_sample_images().images
    pieces = torch.from_numpy(np.stack(photographs)).unfold(1, 32, 32).unfold(2, 32, 32)
    return pieces.reshape(-1, *_SHAPE).float() / 255
