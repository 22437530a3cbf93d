"""A network whose training takes longer than its rows take to load: ordinary PyTorch."""

import torch
from torch import nn
from torch.nn import functional as F

WIDTH = 1024


class Wide(nn.Module):
    """Three linear layers over rows of 1024 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(WIDTH, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(),
            nn.Linear(512, 10),
        )  # fmt: skip

    def training_step(self, batch: dict[str, torch.Tensor], step: int) -> torch.Tensor:
        """Cross entropy of one batch."""
        return F.cross_entropy(self.layers(batch["x"]), batch["label"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain gradient descent."""
        return torch.optim.SGD(self.parameters(), lr=1e-2)


def build() -> nn.Module:
    """A fresh model."""
    return Wide()
