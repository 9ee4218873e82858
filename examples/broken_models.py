"""Deliberately broken models: what their contracts say stands in the README and is held by a test.

Not collected with the other examples; run it with ``pytest --torchcheck examples/broken_models.py``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract, promises

IMAGES = {
    "inputs": "B 64",
    "targets": Labels("B", classes=10),
    "sizes": {"B": (2, 8)},
    "loss": F.cross_entropy,
}


class Detached(nn.Module):
    """The encoder never learns."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(64, 32)
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = torch.relu(self.encoder(x)).detach()
        return self.head(features)


@contract(**IMAGES)
def detached_encoder() -> nn.Module:
    return Detached()


class Probabilities(nn.Module):
    """Softmax, and again in the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.body(x))).softmax(dim=1)


@contract(**IMAGES)
def double_softmax() -> nn.Module:
    return Probabilities()


class MixesSamples(nn.Module):
    """Normalises over the batch instead of over the features."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.body(x)
        h = h / h.norm(dim=0)
        return self.head(h)


@contract(**IMAGES)
def mixed_samples() -> nn.Module:
    return MixesSamples()


class Column(nn.Module):
    """Predicts a column; the targets are a row."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 32), nn.Linear(32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.body(x)))


def squared_error(prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(prediction, target)


@contract(inputs="B 8", targets="B", sizes={"B": (2, 8)}, loss=squared_error)
def column_against_row() -> nn.Module:
    return Column()


class SeesTheFuture(nn.Module):
    """A causal convolution that pads both sides."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.conv = nn.Conv1d(16, 20, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = F.pad(self.embed(ids).transpose(1, 2), (1, 1))
        return self.conv(x).transpose(1, 2)


@contract(
    inputs="B T",
    batch=((torch.arange(40).view(4, 10) * 7 % 20,), None),
    promises=(promises.Causal(),),
)
def sees_the_future() -> nn.Module:
    return SeesTheFuture()
