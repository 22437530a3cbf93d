"""A loop with Accelerate; five lines are Sealift's, marked below.

    torchrun --standalone --nproc-per-node 2 examples/frameworks/accelerate_loop.py

See docs/howto/frameworks.md.
"""

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import nn

import sealift.integrations.process_group  # noqa: F401 - new
from sealift.data import SealedDataLoader, SealedDataset, owner_keys
from sealift.integrations.accelerate import prepare_loader


def main() -> None:
    """Train, and say how it went."""
    dist.init_process_group("sealift")
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    with owner_keys("vault.db", "north.key", passphrase_file="pass") as keys:
        rows = SealedDataset("sealed/*.sealed", keys)
    part = {"rank": accelerator.process_index, "world_size": accelerator.num_processes}
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(64, 8), nn.Flatten(), nn.Linear(128, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer = accelerator.prepare(model, optimizer)
    steps, loss = 0, torch.zeros(())
    with SealedDataLoader(rows, 8, shuffle=True, seed=1, **part) as loader:
        batches = prepare_loader(accelerator, loader)
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
