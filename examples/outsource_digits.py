"""An ordinary training script; of it three lines are Sealift's, marked below.

    python examples/outsource_digits.py

in the folder of ``servers.toml``, with the servers under way: docs/howto/outsource-modules.md.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset, random_split

from sealift.outsource import outsource_module  # new


def main() -> None:
    """Train a reader of digits, and say how well it reads."""
    torch.manual_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    rows = TensorDataset(torch.tensor(pixels / 16).float(), torch.tensor(labels))
    train, held_out = random_split(rows, [1437, 360])
    layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1, momentum=0.9)
    with outsource_module(
        layers, servers="servers.toml", key="lab.key"
    ) as model:  # new
        for _ in range(5):
            for x, y in DataLoader(train, batch_size=32, shuffle=True):
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                optimizer.step()
        model.eval()
        with torch.no_grad():
            right = [
                (model(x).argmax(dim=1) == y).sum().item()
                for x, y in DataLoader(held_out, batch_size=90)
            ]
        print(model.outsourced())  # new
    print(f"{sum(right) / len(held_out):.1%} of held-out digits are read rightly")


if __name__ == "__main__":
    main()
