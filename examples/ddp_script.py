"""An ordinary DDP script; of it two lines are Sealift's, marked below.

    torchrun --standalone --nproc-per-node 2 examples/ddp_script.py

with SEALIFT_JOB, SEALIFT_KEY and SEALIFT_PASSPHRASE_FILE set: docs/howto/sealed-ddp-scripts.md.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import sealift.integrations.process_group  # noqa: F401 - new


def rows() -> TensorDataset:
    """Whatever the script learns from."""
    torch.manual_seed(0)
    pixels = torch.randn(512, 64)
    return TensorDataset(pixels, (pixels @ torch.randn(64, 10)).argmax(dim=1))


def main() -> None:
    """Train, and say how it goes."""
    dist.init_process_group("sealift")  # was "gloo"
    data = rows()
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data, seed=1))
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model = DistributedDataParallel(layers)
    descent = torch.optim.SGD(model.parameters(), lr=0.5)
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        for pixels, labels in loader:
            descent.zero_grad()
            loss = nn.functional.cross_entropy(model(pixels), labels)
            loss.backward()
            descent.step()
        dist.all_reduce(loss.detach_())
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item() / dist.get_world_size():.9f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
