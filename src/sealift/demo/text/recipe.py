"""A small GPT that reads and writes bytes: ordinary PyTorch, nothing of Sealift."""

import math
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional as F

WINDOW = 64  # bytes of a row
WIDTH = 64
HEADS = 2
BLOCKS = 1  # in a minute, more rows teach more than more depth


class Block(nn.Module):
    """Causal self-attention, then a small network, each added to what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(WIDTH)
        self.attention_in = nn.Linear(WIDTH, 3 * WIDTH)
        self.attention_out = nn.Linear(WIDTH, WIDTH)
        self.before_network = nn.LayerNorm(WIDTH)
        self.network_in = nn.Linear(WIDTH, 4 * WIDTH)
        self.network_out = nn.Linear(4 * WIDTH, WIDTH)
        # At first a block passes on what came in: the deep part wakes up by itself.
        nn.init.zeros_(self.attention_out.weight)
        nn.init.zeros_(self.network_out.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, T, WIDTH) -> (N, T, WIDTH)."""
        x = x + self.attention_out(self.attend(self.before_attention(x)))
        return x + self.network_out(F.gelu(self.network_in(self.before_network(x))))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        """Every place looks at itself and at what stands before it."""
        rows, length, _ = x.shape
        query, key, value = (
            part.view(rows, length, HEADS, -1).transpose(1, 2)
            for part in self.attention_in(x).chunk(3, dim=-1)
        )
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return seen.transpose(1, 2).reshape(rows, length, WIDTH)


class ByteWriter(nn.Module):
    """Says at every place of a text which byte comes next."""

    def __init__(self) -> None:
        super().__init__()
        # A place starts as its byte, the two bytes before it, and where it stands.
        self.byte = nn.ModuleList(nn.Embedding(256, WIDTH) for _ in range(3))
        self.place = nn.Embedding(WINDOW, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.last = nn.LayerNorm(WIDTH)
        for table in (*self.byte, self.place):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """(N, T) bytes, T up to WINDOW -> (N, T, 256) logits of each next byte."""
        text = text.long()
        length = text.shape[1]
        x = self.place.weight[:length]
        for back, table in enumerate(self.byte):
            x = x + table(F.pad(text, (back, 0))[:, :length])
        return F.linear(self.last(self.blocks(x)), self.byte[0].weight)

    def training_step(self, batch: dict[str, torch.Tensor], step: int) -> torch.Tensor:
        """Cross entropy of every next byte, in nats."""
        return _next_bytes(self, batch["text"])[0].mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """One rate from first to last."""
        return torch.optim.AdamW(
            self.parameters(), lr=3e-3, betas=(0.9, 0.99), weight_decay=0.0, fused=True
        )


def _next_bytes(
    model: nn.Module, text: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(loss in nats, whether the likeliest byte is the right one), both (N, T - 1)."""
    logits, wanted = model(text[:, :-1]), text[:, 1:].long()
    loss = F.cross_entropy(logits.transpose(1, 2), wanted, reduction="none")
    return loss, logits.argmax(dim=2) == wanted


def build() -> nn.Module:
    """A fresh model."""
    return ByteWriter()


def evaluate(model: nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, float]:
    """Sums over the batch; they are divided by its rows later."""
    loss, right = _next_bytes(model, batch["text"])
    nats = float(loss.mean(dim=1).sum())
    return {
        "accuracy": float(right.float().mean(dim=1).sum()),
        "bits_per_byte": nats / math.log(2),
        "loss": nats,
    }


def generate(
    model: nn.Module, batch: dict[str, torch.Tensor]
) -> Iterator[dict[str, torch.Tensor]]:
    """When it is served: the likeliest next byte, and the one after it, and so on."""
    text = batch["text"].long()
    while True:
        byte = model(text)[:, -1].argmax(dim=1)
        yield {"byte": byte.to(torch.uint8)}
        text = torch.cat([text[:, 1:], byte[:, None]], dim=1)
