"""A deep network of equal layers, as many parameters as wanted: ordinary PyTorch."""

import torch
from torch import nn
from torch.nn import functional as F

WIDTH = 1024
LAYERS = 10


class Deep(nn.Module):
    """Square linear layers over rows of 32 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.last = nn.Linear(WIDTH, 10)

    def training_step(self, batch: dict[str, torch.Tensor], step: int) -> torch.Tensor:
        """Cross entropy of one batch."""
        found = self.first(batch["x"])
        for layer in self.layers:
            found = F.relu(layer(found))
        return F.cross_entropy(self.last(found), batch["label"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW: two moments for each weight."""
        return torch.optim.AdamW(self.parameters(), lr=1e-4)

    def evaluate(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The loss on rows that were not trained on."""
        return {"loss": self.training_step(batch, 0)}


def build() -> nn.Module:
    """A fresh model."""
    return Deep()
