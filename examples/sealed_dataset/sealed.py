"""Train a small classifier on train.sealed."""

import torch

from sealift.data import SealedDataLoader, SealedDataset, owner_keys

with owner_keys("vault.db", "north.key", passphrase_file="north.pass") as keys:
    dataset = SealedDataset("sealed/train.sealed", keys)
batches = SealedDataLoader(dataset, 32, shuffle=True, fields=("x", "label"))

torch.manual_seed(0)
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
for epoch in range(5):
    for x, label in batches:
        loss = torch.nn.functional.cross_entropy(model(x), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}")
batches.close()
dataset.close()
