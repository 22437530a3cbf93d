"""Train a small classifier on train.npz."""

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

arrays = np.load("train.npz")
x, label = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["label"])
batches = DataLoader(TensorDataset(x, label), batch_size=32, shuffle=True)

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
