"""A parameter moves by its own gradient: not by that of another one of its shape, whatever norms are taken over all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

X = torch.randn(6, 5, generator=torch.Generator().manual_seed(3))
Y = torch.arange(6) % 3


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(5, 5), nn.Linear(5, 5)
        self.head = nn.Linear(5, 3)
        with torch.no_grad():
            for place, (first, last) in enumerate(((0.1, 0.2), (0.2, 0.1), (0.3, 0.3))):
                layer = (self.one, self.two, self.head)[place]
                layer.weight[0, 0], layer.weight[-1, -1] = first, last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x + self.two(torch.tanh(self.one(x))))


class Momentum(torch.optim.Optimizer):
    """Sound: momentum, clipped by the norm of all gradients, with a decay."""

    def __init__(self, params: Any, lr: float = 0.05) -> None:
        super().__init__(params, {"lr": lr})

    def key(self, p: torch.Tensor) -> Any:
        return p

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        held = [p for g in self.param_groups for p in g["params"] if p.grad is not None]
        norm = sum(float(p.grad.square().sum()) for p in held) ** 0.5
        for p in held:
            kept = self.state[self.key(p)].setdefault("m", torch.zeros(p.numel()))
            kept.mul_(0.9).add_(p.grad.flatten() / max(1.0, norm))
            p.mul_(0.999).sub_(self.param_groups[0]["lr"] * kept.view_as(p))


class BySize(Momentum):
    def __init__(self, params: Any, lr: float = 0.05) -> None:
        super().__init__(params, lr)
        self.first: dict[int, torch.Tensor] = {}

    def key(self, p: torch.Tensor) -> Any:
        return self.first.setdefault(p.numel(), p)


class Trust(Momentum):
    """Sound: the step is as long as a product of all gradients with all earlier ones says."""

    def step(self, closure: Any = None) -> None:
        held = [p for g in self.param_groups for p in g["params"] if p.grad is not None]
        product = sum(float((p.grad * p.grad).sum()) for p in held)
        self.param_groups[0]["lr"] = 0.02 / (1 + product)
        super().step()


def handed(model: Any, optimizer: Any, inputs: Any, targets: Any) -> torch.Tensor:
    loss = F.cross_entropy(model(*inputs), targets)
    layers = sorted(model.children(), key=lambda layer: float(layer.weight.detach()[0, 0]))
    found = iter(torch.autograd.grad(loss, [p for one in layers for p in one.parameters()]))
    for layer in sorted(layers, key=lambda layer: float(layer.weight.detach()[-1, -1])):
        for p in layer.parameters():
            gradient = next(found)
            p.grad = gradient if gradient.shape == p.shape else torch.zeros_like(p)
    optimizer.step()
    return loss.detach()


def by_name(model: Any, optimizer: Any, inputs: Any, targets: Any) -> torch.Tensor:
    loss = F.cross_entropy(model(*inputs), targets)
    held = list(model.parameters())
    found = torch.autograd.grad(loss, held)
    norm = torch.stack([g.norm() for g in found]).norm()
    for p, gradient in zip(held, found, strict=True):
        p.grad = gradient / norm.clamp(min=1)
    optimizer.step()
    return loss.detach()


def averaged(model: Any, optimizer: Any, inputs: Any, targets: Any) -> torch.Tensor:
    """Sound: two layers are one, by the mean of their gradients."""
    optimizer.zero_grad()
    loss = F.cross_entropy(model(*inputs), targets)
    loss.backward()
    for a, b in zip(model.one.parameters(), model.two.parameters(), strict=True):
        mean = (a.grad + b.grad) / 2
        a.grad, b.grad = mean, mean.clone()
    optimizer.step()
    return loss.detach()


def sharpness(model: Any, optimizer: Any, inputs: Any, targets: Any) -> torch.Tensor:
    """Sound: the second gradients are taken where the first ones lead."""
    loss = F.cross_entropy(model(*inputs), targets)
    held = list(model.parameters())
    steps = [0.1 * g for g in torch.autograd.grad(loss, held)]
    moved = {n: p.detach() + s for (n, p), s in zip(model.named_parameters(), steps, strict=True)}
    fast = {n: t.requires_grad_() for n, t in moved.items()}
    second = F.cross_entropy(torch.func.functional_call(model, fast, inputs), targets)
    for p, gradient in zip(held, torch.autograd.grad(second, list(fast.values())), strict=True):
        p.grad = gradient
    optimizer.step()
    return loss.detach()


def told(**declared: Any) -> dict[str, str]:
    report = Contract(model=Net, batch=((X,), Y), loss=F.cross_entropy, **declared).check(
        "weights-update"
    )
    assert not list(report.with_status("error")), str(report)
    return {f.code: str(f) for f in report.findings if f.status == "violated"}


def test_an_optimizer_that_mixes_parameters_of_one_size() -> None:
    found = told(optimizer=lambda model: BySize(model.parameters()))
    assert list(found) == ["gradient-of-another"]
    assert "two.weight by the gradient of one.weight" in found["gradient-of-another"]
    assert "gets other values too" in found["gradient-of-another"]


@pytest.mark.parametrize("kind", [Momentum, Trust])
def test_an_optimizer_that_takes_norms_over_all_does_not(kind: Any) -> None:
    assert told(optimizer=lambda model: kind(model.parameters())) == {}


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_a_step_that_hands_gradients_to_others() -> None:
    found = told(optimizer=sgd, train_step=handed)
    assert "gets the same values" in found["gradient-of-another"]
    assert "p.grad = gradient if" in found["gradient-of-another"]


@pytest.mark.parametrize("step", [by_name, averaged, sharpness])
def test_a_step_that_assigns_gradients_of_its_own(step: Any) -> None:
    assert told(optimizer=sgd, train_step=step) == {}
