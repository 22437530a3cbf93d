"""A small network that reads handwritten digits: ordinary PyTorch, nothing of Sealift."""

import torch
from torch import nn
from torch.nn import functional as F


class DigitReader(nn.Module):
    """Two convolutions and two linear layers over 8x8 images."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.GELU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.GELU(),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 64),
            nn.GELU(),
            nn.Dropout(0.1),
            nn.Linear(64, 10),
        )

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """(N, 64) pixels from 0 to 16 -> (N, 10) logits."""
        return self.layers(pixels.reshape(-1, 1, 8, 8) / 16.0)

    def training_step(self, batch: dict[str, torch.Tensor], step: int) -> torch.Tensor:
        """Cross entropy of one batch."""
        return F.cross_entropy(self(batch["pixels"]), batch["label"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """A rate low enough for owners who lack classes to be visited in turn."""
        return torch.optim.AdamW(self.parameters(), lr=3e-3, fused=True)


def build() -> nn.Module:
    """A fresh model."""
    return DigitReader()


def evaluate(model: nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, float]:
    """Sums over the batch; they are divided by its rows later."""
    logits = model(batch["pixels"])
    right = (logits.argmax(dim=1) == batch["label"]).sum()
    loss = F.cross_entropy(logits, batch["label"], reduction="sum")
    return {"accuracy": float(right), "loss": float(loss)}


def predict(
    model: nn.Module, batch: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """When it is served: the likeliest digit, and how likely each one is."""
    likely = model(batch["pixels"]).softmax(dim=1)
    return {"digit": likely.argmax(dim=1), "probability": likely}
