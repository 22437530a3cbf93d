"""Small models for measurements: an MLP, a ResNet-18-shaped net, a GPT, a BERT-like encoder.

Ordinary PyTorch, nothing of Sealift: the file goes into code bundles as it stands.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MLP_IN, MLP_WIDTH, CLASSES = 16384, 1024, 10
IMAGE, BLOCKS = 96, (64, 128, 256, 512)
TOKENS, VOCABULARY, WIDTH, HEADS, DEPTH = 128, 512, 256, 4, 4


class Mlp(nn.Module):
    """Three linear layers over 16,384 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(MLP_IN, MLP_WIDTH),
            nn.ReLU(),
            nn.Linear(MLP_WIDTH, MLP_WIDTH),
            nn.ReLU(),
            nn.Linear(MLP_WIDTH, CLASSES),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(N, 16384) -> (N, 10)."""
        return self.layers(x)


class Residual(nn.Module):
    """Two 3x3 convolutions, and what came in added to them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(after) for _ in range(2))
        self.short = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(N, before, H, W) -> (N, after, H / stride, W / stride)."""
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + self.short(x))


class ResNet18(nn.Module):
    """Eight residual blocks in four widths, as in He et al. 2015."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, BLOCKS[0], 7, 2, 3, bias=False)
        parts: list[nn.Module] = []
        before = BLOCKS[0]
        for place, width in enumerate(BLOCKS):
            parts += [
                Residual(before, width, 1 + (place > 0)),
                Residual(width, width, 1),
            ]
            before = width
        self.blocks = nn.Sequential(*parts)
        self.head = nn.Linear(before, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3, 96, 96) -> (N, 10)."""
        x = F.max_pool2d(F.relu(self.stem(x)), 3, 2, 1)
        return self.head(self.blocks(x).mean(dim=(2, 3)))


class Layer(nn.Module):
    """Attention and a network of four times the width, each added to what came in."""

    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.attend_in = nn.Linear(WIDTH, 3 * WIDTH)
        self.attend_out = nn.Linear(WIDTH, WIDTH)
        self.network = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, WIDTH) -> (N, T, WIDTH)."""
        rows, length, _ = x.shape
        query, key, value = (
            part.view(rows, length, HEADS, -1).transpose(1, 2)
            for part in self.attend_in(self.norms[0](x)).chunk(3, dim=-1)
        )
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + self.attend_out(seen.transpose(1, 2).reshape(rows, length, WIDTH))
        return x + self.network(self.norms[1](x))


class Gpt(nn.Module):
    """Four causal layers; scores of every next token."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.place = nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.Sequential(*(Layer(causal=True) for _ in range(DEPTH)))
        self.last = nn.LayerNorm(WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        """(N, T) -> (N, T, VOCABULARY)."""
        x = self.token(tokens.long()) + self.place.weight[: tokens.shape[1]]
        return F.linear(self.last(self.layers(x)), self.token.weight)


class Bert(nn.Module):
    """Four layers that see both ways, over features; a label for each place."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.Sequential(*(Layer(causal=False) for _ in range(DEPTH)))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, features: Tensor) -> Tensor:
        """(N, T, WIDTH) -> (N, T, 10)."""
        return self.head(self.layers(features + self.place.weight))


MODELS = {"mlp": Mlp, "resnet18": ResNet18, "gpt": Gpt, "bert": Bert}


def make(name: str) -> nn.Module:
    """A model of that name, the same each time."""
    torch.manual_seed(1)
    return MODELS[name]()
