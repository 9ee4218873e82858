"""Ten small models of different kinds, each with a batch, a loss and an optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Entry:
    build: Callable[[], nn.Module]
    batch: Callable[[], tuple[tuple[Tensor, ...], Tensor]]
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = lambda m: torch.optim.AdamW(
        m.parameters(), lr=1e-3
    )
    fake: bool = True


class MLP(nn.Module):
    def __init__(self, width: int = 256, depth: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.head(x)


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
            nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        self.rnn = nn.LSTM(64, 128, num_layers=2, batch_first=True)
        self.head = nn.Linear(128, 10)

    def forward(self, ids: Tensor) -> Tensor:
        out, _ = self.rnn(self.embed(ids))
        return self.head(out[:, -1])


class Block(nn.Module):
    def __init__(self, width: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mask = torch.ones(t, t, dtype=torch.bool).tril()
            scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
            y = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(
        self, *, fused: bool = True, tied: bool = False, checkpointed: bool = False, width: int = 64, depth: int = 3,
        heads: int = 4, vocab: int = 100, length: int = 256,
    ) -> None:  # fmt: skip
        super().__init__()
        self.checkpointed = checkpointed
        self.embed = nn.Embedding(vocab, width)
        self.place = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, fused) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.place(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(self.norm(x)).flatten(0, 1)


class UNet(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.inc = nn.Conv2d(3, width, 3, padding=1)
        self.down1 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.down2 = nn.Conv2d(2 * width, 4 * width, 3, padding=1)
        self.up1 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.mix1 = nn.Conv2d(4 * width, 2 * width, 3, padding=1)
        self.up2 = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.mix2 = nn.Conv2d(2 * width, width, 3, padding=1)
        self.out = nn.Conv2d(width, 4, 1)
        self.norm = nn.GroupNorm(4, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.inc(x))
        b = F.relu(self.norm(self.down1(F.max_pool2d(a, 2))))
        c = F.silu(self.down2(F.max_pool2d(b, 2)))
        y = F.relu(self.mix1(torch.cat([b, self.up1(c)], 1)))
        y = F.relu(self.mix2(torch.cat([a, self.up2(y)], 1)))
        return self.out(y)


class MixtureOfExperts(nn.Module):
    """Top-1 routing by boolean masks: which rows an expert sees depends on the data."""

    def __init__(self, width: int = 64, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(experts)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        gate, chosen = self.router(x).softmax(-1).max(-1)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero(as_tuple=True)[0]
            y = y.index_add(0, rows, expert(x[rows]) * gate[rows, None])
        return self.head(x + y)


class Recommender(nn.Module):
    """Large embedding tables, little else."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(20_000, 32)
        self.items = nn.Embedding(10_000, 32)
        self.head = nn.Linear(64, 10)

    def forward(self, pair: Tensor) -> Tensor:
        return self.head(torch.cat([self.users(pair[:, 0]), self.items(pair[:, 1])], -1))


def floats(*shape: int, classes: int = 10) -> Callable[[], tuple[tuple[Tensor, ...], Tensor]]:
    return lambda: ((torch.randn(*shape),), torch.randint(0, classes, (shape[0],)))


def tokens(batch: int, length: int, vocab: int = 100, *, each: bool = True):
    count = batch * length if each else batch
    classes = vocab if each else 10
    return lambda: (
        (torch.randint(0, vocab, (batch, length)),),
        torch.randint(0, classes, (count,)),
    )


ZOO: dict[str, Entry] = {
    "mlp": Entry(MLP, floats(64, 256)),
    "conv": Entry(ConvNet, floats(8, 3, 32, 32), optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)),
    "lstm": Entry(Recurrent, tokens(16, 24, each=False)),
    "transformer-sdpa": Entry(Transformer, tokens(4, 128)),
    "transformer-explicit": Entry(lambda: Transformer(fused=False), tokens(4, 128)),
    "unet": Entry(UNet, lambda: ((torch.randn(2, 3, 64, 64),), torch.randint(0, 4, (2, 64, 64)))),
    "moe": Entry(MixtureOfExperts, floats(128, 64), fake=False),
    "embedding": Entry(
        Recommender, lambda: ((torch.randint(0, 10_000, (64, 2)),), torch.randint(0, 10, (64,)))
    ),
    "tied": Entry(lambda: Transformer(tied=True), tokens(4, 128)),
    "checkpointed": Entry(lambda: Transformer(checkpointed=True, fused=False), tokens(4, 128)),
    "foreach": Entry(MLP, floats(64, 256), optimizer=lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3, foreach=True)),
}  # fmt: skip
