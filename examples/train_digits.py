"""Train a small net on handwritten digits: a script that knows nothing of contracts.

Run with ``python examples/train_digits.py [epochs]``; ``test_scripts.py`` holds it to its contract, as it is.
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def load(train: bool) -> TensorDataset:
    images, labels = load_digits(return_X_y=True)
    part = torch.arange(len(labels)) % 5 != 0 if train else torch.arange(len(labels)) % 5 == 0
    images = torch.tensor(images / 16.0, dtype=torch.float32)
    return TensorDataset(images.view(-1, 1, 8, 8)[part], torch.tensor(labels)[part])


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 16, 10),
    )  # fmt: skip


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: tuple[torch.Tensor],
    targets: torch.Tensor,
) -> torch.Tensor:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(*inputs), targets)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


def accuracy(model: nn.Module, loader: DataLoader[tuple[torch.Tensor, ...]]) -> float:
    model.eval()
    with torch.no_grad():
        hits = torch.cat([model(images).argmax(1) == labels for images, labels in loader])
    model.train()
    return hits.float().mean().item()


def main(epochs: int) -> float:
    torch.manual_seed(0)
    model = make_model()
    optimizer = make_optimizer(model)
    loader = DataLoader(load(train=True), batch_size=32, shuffle=True)
    evaluation = DataLoader(load(train=False), batch_size=64)
    for epoch in range(epochs):
        losses = [train_step(model, optimizer, (x,), y) for x, y in loader]
        loss = torch.stack(losses).mean().item()
        print(f"epoch {epoch}: loss {loss:.4f}, accuracy {accuracy(model, evaluation):.3f}")
    return accuracy(model, evaluation)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
