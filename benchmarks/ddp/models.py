"""Models whose gradients are as large as those of their namesakes, and DDP's buckets.

Plain torch, freshly initialised: what is measured is how long an iteration takes, and
which bytes it sends; nothing is learnt. Shapes are the published ones, parameter counts
within 1 % (torchvision's ResNet-18 and VGG-11, BERT-base, GPT-2). Of GPT-2-XL there are
the shapes alone, for the buckets that DDP would make of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

BATCH: Final = 4
SEQUENCE: Final = 128
MIB: Final = 1 << 20
FIRST_BUCKET_BYTES: Final = MIB  # torch.distributed's, where the cap is its default
DEFAULT_CAP_MIB: Final = 25
_CLASSES: Final = 1000


class Residual(nn.Module):
    """Two convolutions and what goes past them."""

    def __init__(self, came: int, goes: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(came, goes, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(goes),
            nn.ReLU(inplace=True),
            nn.Conv2d(goes, goes, 3, padding=1, bias=False),
            nn.BatchNorm2d(goes),
        )
        self.past: nn.Module = nn.Identity()
        if stride != 1 or came != goes:
            short = nn.Conv2d(came, goes, 1, stride, bias=False)
            self.past = nn.Sequential(short, nn.BatchNorm2d(goes))

    def forward(self, x: Tensor) -> Tensor:
        """(N, came, H, W) -> (N, goes, H / stride, W / stride)."""
        return functional.relu(self.inner(x) + self.past(x))


def resnet18() -> nn.Module:
    """11.7 million parameters."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, padding=1),
    ]
    for came, goes in ((64, 64), (64, 128), (128, 256), (256, 512)):
        layers += [Residual(came, goes, goes // came), Residual(goes, goes, 1)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, _CLASSES)]
    return nn.Sequential(*layers)


def vgg11() -> nn.Module:
    """132.9 million parameters, most of them in one layer."""
    layers: list[nn.Module] = []
    came = 3
    for goes, pools in (
        *((64, True), (128, True), (256, False), (256, True)),
        *((512, False), (512, True), (512, False), (512, True)),
    ):
        layers += [nn.Conv2d(came, goes, 3, padding=1), nn.ReLU(inplace=True)]
        layers += [nn.MaxPool2d(2)] * pools
        came = goes
    layers += [nn.Flatten(), nn.Linear(512 * 7 * 7, 4096), nn.ReLU(inplace=True)]
    layers += [nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Linear(4096, _CLASSES)]
    return nn.Sequential(*layers)


class Transformer(nn.Module):
    """An encoder (BERT) or, with ``causal``, a decoder (GPT-2), its output weights tied.

    Args:
        words: In the vocabulary.
        width: Of a token, in ``width / 64`` heads.
        depth: Layers.
    """

    def __init__(self, words: int, width: int, depth: int, *, causal: bool) -> None:
        super().__init__()
        positions = 1024 if causal else 512
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(positions, width)
        self.causal = causal
        heads, inner = width // 64, 4 * width
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width,
                heads,
                inner,
                dropout=0.0,
                activation="gelu",
                batch_first=True,
                norm_first=causal,
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        """(N, T) tokens -> (N T, words) scores."""
        length = tokens.shape[1]
        x = self.words(tokens) + self.places.weight[:length]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        for layer in self.layers:
            x = layer(x, src_mask=mask if self.causal else None, is_causal=self.causal)
        return functional.linear(self.norm(x), self.words.weight).flatten(0, 1)


@dataclass(frozen=True, slots=True)
class Shape:
    """A model, and what one rank trains it on in an iteration."""

    make: Callable[[], nn.Module]
    words: int = 0  # of the vocabulary; 0 is images

    def batch(self, rank: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a rank."""
        draw = torch.Generator().manual_seed(rank)
        if not self.words:
            images = torch.randn(BATCH, 3, 224, 224, generator=draw)
            return images, torch.randint(_CLASSES, (BATCH,), generator=draw)
        tokens = torch.randint(self.words, (BATCH, SEQUENCE + 1), generator=draw)
        return tokens[:, :-1], tokens[:, 1:].flatten()


_BERT_WORDS, _GPT2_WORDS = 30_522, 50_257
MODELS: Final = {
    "resnet18": Shape(resnet18),
    "vgg11": Shape(vgg11),
    "bert": Shape(
        partial(Transformer, _BERT_WORDS, 768, 12, causal=False), _BERT_WORDS
    ),
    "gpt2": Shape(partial(Transformer, _GPT2_WORDS, 768, 12, causal=True), _GPT2_WORDS),
}


def gradient_bytes(name: str) -> list[int]:
    """Of each parameter, in the model's order; ``gpt2-xl`` is one that nobody makes here."""
    if name == "gpt2-xl":
        with torch.device("meta"):
            model: nn.Module = Transformer(_GPT2_WORDS, 1600, 48, causal=True)
    else:
        with torch.device("meta"):
            model = MODELS[name].make()
    return [4 * each.numel() for each in model.parameters()]


def buckets(sizes: Sequence[int], cap_bytes: int, first_bytes: int) -> list[int]:
    """Bytes of DDP's buckets, in the order in which they are reduced.

    Gradients come last first; a bucket closes once it has reached its limit, which is
    ``first_bytes`` for the first one (torch's ``compute_bucket_assignment_by_size``).
    """
    found, held, limit = list[int](), 0, first_bytes
    for size in reversed(sizes):
        held += size
        if held >= limit:
            found.append(held)
            held, limit = 0, cap_bytes
    return [*found, held] if held else found
