"""FSDP2, each block in shards; five lines are Sealift's, marked below.

    torchrun --standalone --nproc-per-node 2 examples/frameworks/fsdp2_loop.py

See docs/howto/frameworks/fsdp2.md.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler

import sealift.integrations.process_group  # noqa: F401 - new
from sealift.data import SealedDataset, owner_keys  # new


def main() -> None:
    """Train, and say how it went."""
    dist.init_process_group("sealift")  # new
    with owner_keys("vault.db", "north.key", passphrase_file="pass") as keys:  # new
        rows = SealedDataset("sealed/*.sealed", keys)  # was torch.load("rows.pt")
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(32, 2, 64, dropout=0, batch_first=True)
    model = nn.Sequential(
        nn.Embedding(64, 32), nn.TransformerEncoder(block, 2), nn.Linear(32, 64)
    )
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (*model[1].layers, model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(rows, batch_size=8, sampler=DistributedSampler(rows))
    steps, loss = 0, torch.zeros(())
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            said = model(batch["input_ids"]).flatten(0, 1)
            loss = nn.functional.cross_entropy(said, batch["labels"].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
    dist.all_reduce(loss.detach_())
    if dist.get_rank() == 0:
        print(f"steps {steps}, loss {loss / dist.get_world_size():.9f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
