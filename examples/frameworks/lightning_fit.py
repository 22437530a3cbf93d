"""Lightning's Trainer with its default callbacks; two lines are Sealift's, marked below.

    torchrun --standalone --nproc-per-node 2 examples/frameworks/lightning_fit.py

See docs/howto/frameworks/lightning.md.
"""

import sys

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sealift.integrations.lightning import SealedDDPStrategy  # new


class Digits(lightning.LightningModule):
    """An ordinary module."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def training_step(self, batch: list[Tensor], _number: int) -> Tensor:
        """The loss, and how it goes."""
        pixels, labels = batch
        loss = nn.functional.cross_entropy(self.layers(pixels), labels)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch: list[Tensor], _number: int) -> None:
        """How it goes on other rows."""
        pixels, labels = batch
        right = (self.layers(pixels).argmax(1) == labels).float().mean()
        self.log("right", right, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Descent."""
        return torch.optim.SGD(self.parameters(), lr=0.5)


def rows(count: int, seed: int) -> DataLoader:
    """Whatever the module learns from."""
    drawn = torch.Generator().manual_seed(seed)
    pixels = torch.randn(count, 64, generator=drawn)
    truth = torch.randn(64, 10, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(pixels, (pixels @ truth).argmax(1)), batch_size=32)


def main() -> None:
    """Train for some epochs, or go on from a checkpoint; say how it went."""
    epochs, checkpoint = int(sys.argv[1]), (*sys.argv[2:], None)[0]
    lightning.seed_everything(1)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=2,
        strategy=SealedDDPStrategy(),  # was "ddp"
        default_root_dir="trained",
    )
    trainer.fit(Digits(), rows(512, 1), rows(64, 2), ckpt_path=checkpoint)
    if trainer.is_global_zero:
        said = {name: float(each) for name, each in trainer.callback_metrics.items()}
        print(f"steps {trainer.global_step}, {said}")
        print(f"kept {trainer.checkpoint_callback.best_model_path}")


if __name__ == "__main__":
    main()
