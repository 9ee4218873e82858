"""Four bugs in three architectures each: one in an image model, one in a sequence model, one in a graph of parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, Tokens

if TYPE_CHECKING:
    from collections.abc import Callable

IMAGE: dict[str, Any] = {
    "inputs": "B 3 12 12",
    "targets": Labels("B", classes=4),
    "loss": F.cross_entropy,
    "sizes": {"B": (2, 6)},
}
TEXT: dict[str, Any] = {
    "inputs": Tokens("B T", vocab=20),
    "targets": Labels("B", classes=4),
    "loss": F.cross_entropy,
    "sizes": {"B": (2, 6), "T": (4, 10)},
}
TABLE: dict[str, Any] = {
    "inputs": "B 8",
    "targets": Labels("B", classes=4),
    "loss": F.cross_entropy,
    "sizes": {"B": (2, 6)},
}


class Conv(nn.Module):
    """Convolutions, a normalisation, a head."""

    def __init__(self, bug: str = "") -> None:
        super().__init__()
        self.bug = bug
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.head = nn.Linear(8 * (9 if bug == "shape" else 36), 4)
        self.gate = nn.Linear(8, 8)

    def forward(self, x):
        h = torch.sigmoid(self.norm(self.stem(x)))
        if self.bug == "in-place":
            h += 1
        if self.bug == "detached":
            h = h.detach()
        pooled = F.max_pool2d(h, 2)
        keys = pooled.flatten(2).transpose(1, 2)
        scores = self.gate(keys) @ keys.transpose(1, 2)
        if self.bug == "masked":
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool), float("-inf"))
        mixed = scores.softmax(-1) @ keys
        return self.head((mixed + keys).flatten(1))


class Recurrent(nn.Module):
    """An embedding, a recurrent network, attention over its outputs."""

    def __init__(self, bug: str = "") -> None:
        super().__init__()
        self.bug = bug
        self.tokens = nn.Embedding(20, 16)
        self.rnn = nn.GRU(16, 16, batch_first=True)
        self.query = nn.Linear(16, 16)
        self.head = nn.Linear(24 if bug == "shape" else 16, 4)

    def forward(self, ids):
        h = self.rnn(self.tokens(ids))[0].exp()
        if self.bug == "in-place":
            h.mul_(0.5)
        if self.bug == "detached":
            h = h.detach()
        scores = (self.query(h) * h).sum(-1)
        hidden = ids >= (0 if self.bug == "masked" else 99)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        return self.head((weights.unsqueeze(-1) * h).sum(1))


class Block(nn.Module):
    """Attention and a feed-forward network on residual connections."""

    def __init__(self, bug: str, width: int) -> None:
        super().__init__()
        self.bug = bug
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(3 * width if bug == "shape" else 2 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.first(x)).chunk(3, -1)
        scores = q @ k.transpose(-2, -1) / 4
        if self.bug == "masked":
            scores = scores + torch.full_like(scores, float("-inf"))
        x = x + self.out(scores.softmax(-1) @ v)
        h = torch.tanh(self.wide(self.second(x)))
        if self.bug == "in-place":
            h.add_(1)
        return x + self.narrow(h)


class Transformer(nn.Module):
    """Columns of a table as tokens, two blocks, a head."""

    def __init__(self, bug: str = "") -> None:
        super().__init__()
        self.bug = bug
        self.embed = nn.Linear(1, 16)
        self.place = nn.Parameter(torch.randn(8, 16) / 4)
        self.blocks = nn.Sequential(Block("", 16), Block(bug, 16))
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        h = self.blocks(self.embed(x.unsqueeze(-1)) + self.place)
        if self.bug == "detached":
            h = torch.from_numpy(h.detach().numpy())
        return self.head(h.mean(1))


MODELS: dict[str, tuple[Callable[[str], nn.Module], dict[str, Any]]] = {
    "conv": (Conv, IMAGE),
    "recurrent": (Recurrent, TEXT),
    "transformer": (Transformer, TABLE),
}
CODES = {
    "in-place": "inplace-saved",
    "shape": "matmul-shapes",
    "detached": "grad-none",
    "masked": "non-finite-forward",
}
