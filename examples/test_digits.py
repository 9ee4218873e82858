"""Handwritten digits (scikit-learn's): an MLP and a convolutional net, each held to its contract.

Run with ``pytest --torchcheck examples``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Dataset

from pytest_torchcheck import Contract, Labels, contract


class Digits(Dataset[tuple[torch.Tensor, int]]):
    """1797 images of 8x8 grey values, scaled to 0..1; the evaluation set is every fifth of them."""

    def __init__(self, train: bool) -> None:
        images, labels = load_digits(return_X_y=True)
        chosen = [i for i in range(len(labels)) if (i % 5 != 0) == train]
        self.images = torch.tensor(images[chosen] / 16.0, dtype=torch.float32).view(-1, 1, 8, 8)
        self.labels = [int(label) for label in labels[chosen]]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.images[index], self.labels[index]


def real_batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sixteen real digits, chosen by the seed."""
    data = Digits(train=True)
    chosen = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:16]
    return data.images[chosen], torch.tensor([data.labels[i] for i in chosen.tolist()])


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=1e-2)


@contract(
    inputs="B 1 8 8",
    sizes={"B": (1, 32)},
    batch=real_batch,
    targets=Labels("B", classes=10),
    output="B 10",
    loss=F.cross_entropy,
    optimizer=adam,
    memory="2 MiB",
)
def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10))


class ConvNet(nn.Module):
    """Three convolutions and a global average: any image of at least 4x4 pixels goes in."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1, stride=2),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.ReLU(),
        )
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(32, classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        features = self.features(image).mean(dim=(2, 3))
        return self.head(self.dropout(features))


@contract(
    inputs="B 1 H W",
    sizes={"B": (1, 32), "H": (4, 16), "W": (4, 16)},
    batch=real_batch,
    targets=Labels("B", classes=10),
    output="B 10",
    loss=F.cross_entropy,
    optimizer=adam,
    memory={"total": "16 MiB", "parameters": "128 KiB"},
    growth={"B": 1},
    dtypes=("float32", "float64", "bfloat16"),
)
def convnet() -> nn.Module:
    return ConvNet()


digits_data = Contract(
    dataset={"train": Digits(train=True), "eval": Digits(train=False)},
    loader={"batch_size": 32, "num_workers": 0},
)
