"""The class-wise mean and DIWA in a plain PyTorch loop. Nothing else of ffcil is used.

Two classes arrive first, then one, then five. Ten images of each old class are replayed. It runs in seconds:

    python examples/in_your_own_loop.py
"""

import torch
import torch.nn.functional as F
from torch import nn

from ffcil.alignment import diwa
from ffcil.losses import class_wise_mean

# Your data: eight classes of noisy patterns, with 200 training and 50 test images each.
torch.manual_seed(0)
patterns = torch.randn(8, 64)


def images(label: int, count: int) -> torch.Tensor:
    return patterns[label] + 2.5 * torch.randn(count, 64)


train = [images(label, 200) for label in range(8)]
test = [images(label, 50) for label in range(8)]

# Your model: a small network with one linear head that grows.
body = nn.Sequential(nn.Linear(64, 128), nn.ReLU())
head = nn.Linear(128, 2)


def grow(old: nn.Linear, classes: int) -> nn.Linear:
    new = nn.Linear(old.in_features, classes)
    with torch.no_grad():
        new.weight[: old.out_features], new.bias[: old.out_features] = old.weight, old.bias
    return new


seen = 0
for size in (2, 1, 5):
    old, seen = seen, seen + size
    head = grow(head, seen)
    replayed = [(train[c][:10], c) for c in range(old)]  # a memory of ten images per class
    pairs = replayed + [(train[c], c) for c in range(old, seen)]
    x = torch.cat([batch for batch, _ in pairs])
    y = torch.cat([torch.full((len(batch),), c) for batch, c in pairs])
    optimiser = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.05, momentum=0.9)
    for _ in range(30):
        for rows in torch.randperm(len(x)).split(64):
            per_sample = F.cross_entropy(head(body(x[rows])), y[rows], reduction="none")
            loss = class_wise_mean(per_sample, y[rows])  # was: per_sample.mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    aligned = diwa(head.weight, old)  # once per step, after training; it does nothing in the first step
    with torch.no_grad():
        right = [(head(body(test[c])).argmax(1) == c).float().mean().item() for c in range(seen)]
    scale = f"new rows x {aligned.gamma:.2f}" if aligned else "nothing to align"
    print(f"+{size} = {seen} classes: accuracy {100 * sum(right) / seen:.1f} % ({scale})")
