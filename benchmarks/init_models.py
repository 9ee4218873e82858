# ruff: noqa: D102
"""Twenty sound models for ``init_holds.py``; with ``BROKEN`` in the environment each breaks one thing that it promised."""

from __future__ import annotations

import copy
import os
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BROKEN: Final = bool(os.environ.get("BROKEN"))


class Decoder(nn.Module):
    """Attends to the past. Broken: the mask is one diagonal too high."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 16)
        self.attend = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 40)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        length = ids.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool).triu(2 if BROKEN else 1)
        return self.head(x + self.attend(x, x, x, attn_mask=mask, need_weights=False)[0])


class TiedModel(nn.Module):
    """One matrix at both ends. Broken: two."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 16)
        self.mix = nn.Linear(16, 16)
        self.head = nn.Linear(16, 40, bias=False)
        self.head.weight = (
            nn.Parameter(self.embed.weight.detach().clone()) if BROKEN else self.embed.weight
        )

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(self.embed(ids))))


class Wide(nn.Module):
    """A perceptron. Broken: its activation is ten times as large."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if BROKEN:
            h = torch.tanh(h.repeat(1, 10)).view(len(x), 10, -1).mean(1)
        return self.last(torch.tanh(h))


class DeepSet(nn.Module):
    """The order of its elements does not matter. Broken: earlier ones count more."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.all = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.each(x))
        if BROKEN:
            h = h * torch.linspace(1.0, 0.5, x.shape[1])[None, :, None]
        return self.all(h.mean(1))


class SetAttention(nn.Module):
    """Outputs follow their elements. Broken: positions are added."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(6, 16)
        self.attend = nn.MultiheadAttention(16, 2, batch_first=True)
        self.out = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.into(x)
        if BROKEN:
            h = h + torch.arange(x.shape[1])[None, :, None].sin()
        return self.out(h + self.attend(h, h, h, need_weights=False)[0])


class MaskedMean(nn.Module):
    """Averages what the mask leaves. Broken: the mask is not looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        h = torch.tanh(self.embed(input_ids))
        if BROKEN:
            return self.head(h.mean(1))
        kept = attention_mask[..., None].to(h.dtype)
        return self.head((h * kept).sum(1) / kept.sum(1).clamp(min=1))


class Reader(nn.Module):
    """A recurrent reader. Broken: the samples of a batch are centred together."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(5, 16, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        last = self.rnn(x)[0][:, -1]
        return self.head(last - last.mean(0) if BROKEN else last)


class Maps(nn.Module):
    """A convolution of 3. Broken: of 11, which costs more."""

    def __init__(self) -> None:
        super().__init__()
        size = 11 if BROKEN else 3
        self.conv = nn.Conv2d(3, 8, size, padding=size // 2)
        self.head = nn.Linear(8, 4)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(torch.relu(self.conv(image)).mean((2, 3)))


class PastConvolution(nn.Module):
    """Pads on the left. Broken: on both sides."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 8, 3)
        self.out = nn.Conv1d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv(F.pad(x, (1, 1) if BROKEN else (2, 0)))
        return self.out(torch.relu(h))


class Dropping(nn.Module):
    """Dropout in training. Broken: always."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        return self.last(F.dropout(h, 0.3, training=True if BROKEN else self.training))


class Classes(nn.Module):
    """Seven classes. Broken: eight."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8 if BROKEN else 7))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class Reading(nn.Module):
    """Reads an image. Broken: it scales the caller's image in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.head = nn.Linear(4, 5)

    def forward(self, image: Tensor) -> Tensor:
        if BROKEN:
            image.mul_(0.5)
        return self.head(torch.relu(self.conv(image)).mean((2, 3)))


class Linear(nn.Module):
    """Memory that grows with the length. Broken: with its square."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Conv1d(6, 16, 1), nn.Conv1d(16, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.into(x))
        if BROKEN:
            weights = (h.transpose(1, 2) @ h).softmax(-1)
            h = h + 1e-3 * h @ weights.transpose(1, 2)
        return self.out(h)


class Scaled(nn.Module):
    """A learned scale in a buffer that is saved. Broken: it is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)
        self.register_buffer("scale", torch.rand(8) + 0.5, persistent=not BROKEN)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x * self.scale)


class Counting(nn.Module):
    """Keeps statistics in training. Broken: in evaluation too, where they change the output."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        if self.training or BROKEN:
            self.mean.copy_(0.9 * self.mean + 0.1 * x.detach().mean(0))
        return self.head(x - self.mean)


class GraphLayer(nn.Module):
    """The order of the nodes does not matter. Broken: the first node is treated apart."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.other = nn.Linear(6, 8), nn.Linear(6, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        source, target = edge_index
        total = torch.zeros_like(x).index_add(0, target, x[source])
        h = torch.relu(self.own(x) + self.other(total))
        if BROKEN:
            h = torch.cat([2 * h[:1], h[1:]])
        return self.out(h)


class Siamese(nn.Module):
    """One encoder under two names. Broken: a copy."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(8, 16)
        self.right = copy.deepcopy(self.left) if BROKEN else self.left
        self.head = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.left(x)) * torch.tanh(self.right(x)))


class Bag(nn.Module):
    """The order of its words does not matter. Broken: the last word counts twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embed(ids)
        pooled = h.mean(1) + h[:, -1] if BROKEN else h.mean(1)
        return self.head(torch.relu(pooled))


class Forward(nn.Module):
    """Reads from left to right. Broken: in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(5, 8, batch_first=True, bidirectional=BROKEN)
        self.out = nn.Linear(16 if BROKEN else 8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0])


class Backward(nn.Module):
    """A trunk that is trained. Broken: a detach before the head."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.trunk(x))
        return self.head(h.detach() if BROKEN else h)


MODELS: Final = tuple(
    name
    for name, value in list(globals().items())
    if isinstance(value, type) and issubclass(value, nn.Module)
)
