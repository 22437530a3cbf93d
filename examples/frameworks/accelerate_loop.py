"""A loop with Accelerate; five lines are Sealift's, marked below.

    torchrun --standalone --nproc-per-node 2 examples/frameworks/accelerate_loop.py

See docs/howto/frameworks/accelerate.md.
"""

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

import sealift.integrations.process_group  # noqa: F401 - new
from sealift.data import SealedDataset, owner_keys  # new


def main() -> None:
    """Train, and say how it went."""
    dist.init_process_group("sealift")  # new
    with owner_keys("vault.db", "north.key", passphrase_file="pass") as keys:  # new
        rows = SealedDataset("sealed/*.sealed", keys)  # was torch.load("rows.pt")
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(64, 8), nn.Flatten(), nn.Linear(128, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(rows, batch_size=8, shuffle=True)
    model, optimizer, batches = accelerator.prepare(model, optimizer, loader)
    steps, loss = 0, torch.zeros(())
    for _ in range(2):
        for batch in batches:
            with accelerator.accumulate(model):
                said = model(batch["input_ids"])
                loss = nn.functional.cross_entropy(said, batch["labels"][:, 0])
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                steps += accelerator.sync_gradients
    mean = accelerator.gather(loss.detach()[None]).mean()
    if accelerator.is_main_process:
        print(f"steps {steps}, loss {mean:.9f}")


if __name__ == "__main__":
    main()
