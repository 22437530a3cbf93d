"""Ray Train over a sealed group: `TorchConfig(backend="sealift")`, and one import a worker.

    make ray
    .venv/bin/python examples/ray_train.py

with SEALIFT_JOB, SEALIFT_KEY and SEALIFT_PASSPHRASE_FILE set: docs/howto/frameworks/ray-train.md.
"""

import os

import ray
import ray.train
import torch
import torch.distributed as dist
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model
from torch import nn

WORKERS = 2


def register() -> None:
    """Ray calls this in every worker, before torch is told which backend to use."""
    import sealift.integrations.process_group  # noqa: F401 - registers it


def train(settings: dict[str, float]) -> None:
    """An ordinary loop of Ray Train."""
    torch.manual_seed(0)
    pixels = torch.randn(512, 64)
    labels = (pixels @ torch.randn(64, 10)).argmax(dim=1)
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    model = prepare_model(nn.Linear(64, 10))
    descent = torch.optim.SGD(model.parameters(), lr=settings["rate"])
    for _ in range(20):
        descent.zero_grad()
        loss = nn.functional.cross_entropy(model(pixels[mine]), labels[mine])
        loss.backward()
        descent.step()
        dist.all_reduce(loss.detach_())
    if dist.get_rank() == 0:
        print(f"loss {loss.item() / dist.get_world_size():.6f}")


def main() -> None:
    """Two workers on this machine."""
    said = {name: value for name, value in os.environ.items() if "SEALIFT_" in name}
    runtime = {"env_vars": said, "worker_process_setup_hook": register}
    ray.init(num_cpus=WORKERS, runtime_env=runtime)
    TorchTrainer(
        train,
        train_loop_config={"rate": 0.5},
        torch_config=TorchConfig(backend="sealift"),
        scaling_config=ray.train.ScalingConfig(num_workers=WORKERS),
    ).fit()


if __name__ == "__main__":
    main()
