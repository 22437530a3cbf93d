"""The process that owns the device: trains on what a data owner feeds it."""

import sys
from pathlib import Path

import torch

from sealift import feed as link
from sealift.errors import SealiftError

FORM = {"x": ("float32", (32, 8)), "label": ("int64", (32,))}  # as the owner says


def main() -> None:
    """Take a step on every batch."""
    with link.accept(
        "feed.sock",
        FORM,
        agreement="agreement.json",
        code=Path(__file__).parent,  # the agreement names this folder by its digest
        identity="cloud.key",
        passphrase_file="cloud.pass",
    ) as batches:
        print(f"{batches.owner} feeds; {batches.opened_by}", flush=True)
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3)
        )
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for batch in batches:  # each after its verdict
            model.to(batch["x"].device)
            loss = torch.nn.functional.cross_entropy(model(batch["x"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"{batches.num_received} steps: loss {loss.item():.3f}")


if __name__ == "__main__":
    try:
        main()
    except SealiftError as error:
        sys.exit(f"device: {error} [{error.code}]")
