"""Ten epochs of 784-32-10 by PyTorch alone: python plain_torch.py DATA.npz MODEL"""

import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

data, model = sys.argv[1:]
torch.manual_seed(0)
arrays = np.load(data)
sets = {
    part: TensorDataset(
        torch.from_numpy(arrays[f"x_{part}"]).float() / 255, torch.from_numpy(arrays[f"y_{part}"])
    )
    for part in ("train", "val", "test")
}
loaders = {part: DataLoader(each, 100, shuffle=part == "train") for part, each in sets.items()}
network = nn.Sequential(nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)


def accuracy(part: str) -> float:
    with torch.no_grad():
        hits = [(network(x).argmax(1) == y).sum().item() for x, y in loaders[part]]
    return float(sum(hits) / len(sets[part]))


for epoch in range(10):
    for features, labels in loaders["train"]:
        loss = F.cross_entropy(network(features), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    print(epoch, accuracy("val"))
print("test", accuracy("test"))
torch.save(network.state_dict(), model)
