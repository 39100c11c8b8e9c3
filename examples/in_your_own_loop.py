"""Parts of the two frameworks in a plain PyTorch loop: CWM and DIWA of the paper; of flow, the count-aware loss, and a
row of the head instead of a training for a class that arrives alone.

Two classes arrive first, then one, then five. Ten images of each old class are replayed. It runs in seconds:

    python examples/in_your_own_loop.py
"""

import torch
from torch import nn

from ffcil.alignment import diwa
from ffcil.losses import class_wise_mean, cross_entropy, log_prior
from ffcil.models.new_rows import fit_new_rows

# Your data: eight classes of noisy patterns, with 200 training and 50 test images each.
torch.manual_seed(0)
patterns = torch.randn(8, 64)


def images(label: int, count: int) -> torch.Tensor:
    return patterns[label] + 2.5 * torch.randn(count, 64)


train = [images(label, 200) for label in range(8)]
test = [images(label, 50) for label in range(8)]


def grow(old: nn.Linear, classes: int) -> nn.Linear:
    new = nn.Linear(old.in_features, classes)
    with torch.no_grad():
        new.weight[: old.out_features], new.bias[: old.out_features] = old.weight, old.bias
    return new


def learn(framework: str) -> None:
    torch.manual_seed(1)
    body = nn.Sequential(nn.Linear(64, 128), nn.ReLU())
    head = nn.Linear(128, 2)
    seen = 0
    for size in (2, 1, 5):
        old, seen = seen, seen + size
        head = grow(head, seen)
        replayed = [(train[c][:10], c) for c in range(old)]  # a memory of ten images per class
        pairs = replayed + [(train[c], c) for c in range(old, seen)]
        x = torch.cat([batch for batch, _ in pairs])
        y = torch.cat([torch.full((len(batch),), c) for batch, c in pairs])
        if framework == "flow" and size == 1:  # the body stays as it is, and so do the rows of the old classes
            with torch.no_grad():
                features = body(x)
                known = head(features)[:, :old]
                head.weight[old:], head.bias[old:] = fit_new_rows(features, y, known, seen, decay=1e-3)
            continue
        prior = log_prior(torch.bincount(y)) if framework == "flow" else None  # once per step, before training
        optimiser = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.05, momentum=0.9)
        for _ in range(30):
            for rows in torch.randperm(len(x)).split(64):
                per_sample = cross_entropy(head(body(x[rows])), y[rows], prior)
                loss = class_wise_mean(per_sample, y[rows]) if framework == "paper" else per_sample.mean()
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
        if framework == "paper":
            diwa(head.weight, old)  # once per step, after training; it does nothing in the first step
    with torch.no_grad():
        right = [(head(body(test[c])).argmax(1) == c).float().mean().item() for c in range(seen)]
    print(f"{framework}: accuracy {100 * sum(right) / seen:.1f} % of {seen} classes")


for framework in ("none", "paper", "flow"):
    learn(framework)
