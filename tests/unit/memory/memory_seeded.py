"""Seeded memory bugs, each with its mended twin; the line at fault ends in ``# BUG``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract, Floats, Labels, Tokens

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Seeded:
    contract: Callable[[bool], Contract]
    check: str
    codes: tuple[str, ...]


class Attention(nn.Module):
    def __init__(self, buggy: bool, width: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.buggy, self.heads = buggy, heads
        self.embed = nn.Embedding(50, width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, 50)

    def forward(self, ids: Tensor) -> Tensor:
        b, t = ids.shape
        q, k, v = self.qkv(self.embed(ids)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.buggy:
            y = (q @ k.transpose(-1, -2) / 4).softmax(-1) @ v  # BUG
        else:
            y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(b, t, -1)).transpose(1, 2)


def attention(buggy: bool) -> Contract:
    return Contract(
        model=lambda: Attention(buggy),
        inputs=Tokens("B T", vocab=50),
        targets=Labels("B T", classes=50),
        sizes={"B": (2, 2), "T": (16, 512)},
        loss=F.cross_entropy,
        growth={"T": 1},
    )


class Distances(nn.Module):
    def __init__(self, buggy: bool) -> None:
        super().__init__()
        self.buggy = buggy
        self.body = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        z = self.body(x)
        if self.buggy:
            apart = (z[:, None] - z[None]).square().sum(-1)  # BUG
            return apart.mean(1)
        return z.square().sum(-1) - 2 * (z @ z.mean(0)) + z.square().sum(-1).mean()


def distances(buggy: bool) -> Contract:
    return Contract(
        model=lambda: Distances(buggy),
        inputs="B 16",
        targets=Floats("B"),
        sizes={"B": (8, 256)},
        loss=F.mse_loss,
        growth={"B": 1},
    )


def pairs_under_a_ceiling(buggy: bool) -> Contract:
    return Contract(
        model=lambda: Distances(buggy),
        inputs="N 16",
        targets=Floats("N"),
        sizes={"N": (8, 200)},
        loss=F.mse_loss,
        memory="1 MiB",
    )


class Keeper(nn.Module):
    def __init__(self, buggy: bool) -> None:
        super().__init__()
        self.buggy = buggy
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 4)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        if self.buggy:
            self.seen.append(h)  # BUG
        return self.second(h)


def kept_by_a_list(buggy: bool) -> Contract:
    return Contract(
        model=lambda: Keeper(buggy),
        batch=(torch.randn(64, 32), torch.randint(0, 4, (64,))),
        loss=F.cross_entropy,
    )


def kept_under_a_ceiling(buggy: bool) -> Contract:
    return Contract(
        model=lambda: Keeper(buggy),
        batch=(torch.randn(512, 32), torch.randint(0, 4, (512,))),
        loss=F.cross_entropy,
        memory="560 KiB",
    )


class WideAdam(torch.optim.Optimizer):
    def __init__(self, parameters: Any, wide: bool) -> None:
        super().__init__(parameters, {"lr": 1e-3})
        self.wide = wide

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    dtype = torch.float64 if self.wide else p.dtype
                    state["mean"] = torch.zeros_like(p, dtype=dtype)  # BUG
                    state["square"] = torch.zeros_like(p, dtype=dtype)
                grad = p.grad.to(state["mean"].dtype)
                state["mean"].lerp_(grad, 0.1)
                state["square"].lerp_(grad.square(), 0.001)
                p.sub_((state["mean"] / (state["square"].sqrt() + 1e-8)).to(p.dtype), alpha=1e-3)


def wide_optimizer(buggy: bool) -> Contract:
    return Contract(
        model=lambda: nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4)),
        batch=(torch.randn(8, 128), torch.randint(0, 4, (8,))),
        loss=F.cross_entropy,
        optimizer=lambda model: WideAdam(model.parameters(), buggy),
        memory={"optimizer_state": "160 KiB"},
    )


class Doubled(nn.Module):
    def __init__(self, buggy: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(200, 64)
        self.head = nn.Linear(64, 200, bias=False)
        if buggy:
            self.head.weight = nn.Parameter(self.embed.weight.detach().clone())  # BUG
        else:
            self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embed(ids)).transpose(1, 2)


def doubled_parameter(buggy: bool) -> Contract:
    return Contract(
        model=lambda: Doubled(buggy),
        batch=(torch.randint(0, 200, (2, 8)), torch.randint(0, 200, (2, 8))),
        loss=F.cross_entropy,
        memory={"parameters": "60 KiB"},
    )


class HalfModel(nn.Module):
    def __init__(self, buggy: bool) -> None:
        super().__init__()
        self.buggy = buggy
        self.embed = nn.Embedding(2000, 64)
        self.body = nn.Linear(64, 64)
        self.head = nn.Linear(64, 2000)

    def forward(self, ids: Tensor) -> Tensor:
        logits = self.head(self.body(self.embed(ids)).relu())
        if self.buggy:
            logits = logits.float()  # BUG
        return logits.flatten(0, 1)


def wide_logits(buggy: bool) -> Contract:
    return Contract(
        model=lambda: HalfModel(buggy),
        inputs=Tokens("B T", vocab=2000),
        targets=Labels("B T", classes=2000),
        sizes={"B": (1, 4), "T": (8, 64)},
        loss=lambda output, targets: F.cross_entropy(output, targets.flatten()),
        dtypes=("bfloat16",),
        memory={"activations": "2.4 MiB"},
    )


SEEDED: dict[str, Seeded] = {
    "explicit-attention": Seeded(attention, "memory-growth", ("memory-growth",)),
    "distances": Seeded(distances, "memory-growth", ("memory-growth",)),
    "distances-ceiling": Seeded(pairs_under_a_ceiling, "peak-memory", ("memory-ceiling",)),
    "kept-by-a-list": Seeded(kept_by_a_list, "step-leak", ("leak-graph",)),
    "kept-under-a-ceiling": Seeded(kept_under_a_ceiling, "peak-memory", ("memory-ceiling",)),
    "optimizer-float64": Seeded(wide_optimizer, "peak-memory", ("memory-ceiling",)),
    "doubled-parameter": Seeded(doubled_parameter, "peak-memory", ("memory-ceiling",)),
    "logits-float32": Seeded(wide_logits, "peak-memory", ("memory-ceiling",)),
}

__all__ = ["SEEDED", "Seeded"]
