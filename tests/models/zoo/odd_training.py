"""Legitimate models that train in an unusual way: none of them may be called wrong."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

from tests.models.zoo import public
from tests.models.zoo.odd import mlp, regression


@public("odd")
def second_order() -> dict[str, Any]:
    return regression(lambda: mlp(4, 3),
                      optimizer=lambda model: torch.optim.LBFGS(model.parameters(), lr=0.3, max_iter=4))  # fmt: skip


class LearnedStart(nn.Module):
    """One gradient step on a support set inside the forward pass: a meta-learner."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(1, 1)
        self.log_rate = nn.Parameter(torch.tensor(math.log(0.1)))

    def forward(self, x: torch.Tensor, y: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        weights = dict(self.net.named_parameters())
        with torch.enable_grad():
            loss = F.mse_loss(torch.func.functional_call(self.net, weights, (x,)), y)
            slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        adapted = {name: weight - self.log_rate.exp() * slope
                   for (name, weight), slope in zip(weights.items(), slopes, strict=True)}  # fmt: skip
        return torch.func.functional_call(self.net, adapted, (query,))


@public("odd")
def meta_learner() -> dict[str, Any]:
    return {"model": LearnedStart,
            "batch": ((torch.randn(8, 1), torch.randn(8, 1), torch.randn(8, 1)), torch.randn(8, 1)),
            "loss": F.mse_loss, "batch_dim": None}  # fmt: skip


class Equilibrium(nn.Module):
    """Iterates to a fixed point without gradient, then once with it."""

    def __init__(self) -> None:
        super().__init__()
        self.inject, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
        self.map = parametrizations.spectral_norm(nn.Linear(8, 8))

    def step(self, z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(0.5 * self.map(z) + self.inject(x))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = torch.zeros(len(x), 8, dtype=x.dtype, device=x.device)
        with torch.no_grad():
            for _ in range(20):
                z = self.step(z, x)
        return self.head(self.step(z, x))


@public("odd")
def equilibrium() -> dict[str, Any]:
    return regression(Equilibrium)


class Beams(nn.Module):
    """Differentiable sorting by permutation matrices that Sinkhorn's iteration makes doubly stochastic."""

    def __init__(self) -> None:
        super().__init__()
        self.score = mlp(3, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        log = self.score(x)
        for _ in range(8):
            log = log - log.logsumexp(-1, keepdim=True)
            log = log - log.logsumexp(-2, keepdim=True)
        return log.exp().transpose(1, 2) @ x


@public("odd")
def sinkhorn_sort() -> dict[str, Any]:
    x = torch.randn(4, 5, 3)
    return {"model": Beams, "batch": ((x,), x.sort(1).values), "loss": F.mse_loss}


class Stateful(nn.Module):
    """A memory that training forwards write to and all forwards read: a queue of negatives."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(4, 8)
        self.register_buffer("queue", F.normalize(torch.randn(16, 8), dim=-1))
        self.register_buffer("at", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor, pair: torch.Tensor) -> torch.Tensor:
        q, k = (F.normalize(self.net(v), dim=-1) for v in (x, pair))
        k = k.detach()
        scores = torch.cat([(q * k).sum(-1, keepdim=True), q @ self.queue.clone().T], 1) / 0.2
        if self.training:
            slots = (self.at + torch.arange(len(k), device=k.device)) % len(self.queue)
            self.queue[slots] = k.to(self.queue)
            self.at.copy_((self.at + len(k)) % len(self.queue))
        return F.cross_entropy(scores, torch.zeros(len(x), dtype=torch.long, device=x.device))


@public("odd")
def queue_of_negatives() -> dict[str, Any]:
    return {"model": Stateful, "batch": ((torch.randn(6, 4), torch.randn(6, 4)), None),
            "loss": "output"}  # fmt: skip
