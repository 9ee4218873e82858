"""A derivative without a graph that is added to the loss is told; one that weighs or perturbs it is meant so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract


class Field(nn.Module):
    """An energy, and the forces that are its derivative."""

    def __init__(self, *, graph: bool) -> None:
        super().__init__()
        self.graph = graph
        self.energy = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            energy = self.energy(x).squeeze(-1)
            kept = {"create_graph": self.graph, "retain_graph": True}
            (slope,) = torch.autograd.grad(energy.sum(), x, **kept)  # slope
        return energy, -slope


def both(output: tuple[Tensor, Tensor], targets: tuple[Tensor, Tensor]) -> Tensor:
    return F.mse_loss(output[0], targets[0]) + 10 * F.mse_loss(output[1], targets[1])


def _report(model: nn.Module, loss: Any, targets: Any) -> Any:
    batch = ((torch.randn(6, 3),), targets)
    return Contract(model=model, batch=batch, loss=loss).check("loss-sound")


def test_forces_without_a_graph() -> None:
    targets = (torch.randn(6), torch.randn(6, 3))
    (finding,) = _report(Field(graph=False), both, targets).findings
    assert finding.code == "derivative-without-graph"
    assert finding.location.text.endswith("# slope")
    assert finding.culprits[0].name == "create_graph"
    assert "F.mse_loss(output[1], targets[1])" in finding.culprits[1].location.text
    assert _report(Field(graph=True), both, targets).ok


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def weighted(output: Tensor, targets: Tensor) -> Tensor:
    """The weight of one term by the norms of two gradients, as of a perceptual and an adversarial loss."""
    first, second = F.cross_entropy(output, targets), output.square().mean()
    one, two = (
        torch.autograd.grad(t, output, retain_graph=True)[0].norm() for t in (first, second)
    )
    return first + (one / (two + 1e-4)).clamp(0, 10) * second


class Adversarial(Classifier):
    """Moves its hidden state along a derivative, which is meant to be constant."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.layers[:2](x)
        if self.training:
            with torch.enable_grad():
                still = hidden.detach().requires_grad_(True)
                (way,) = torch.autograd.grad(self.layers[2](still).square().sum(), still)
            hidden = hidden + 0.1 * F.normalize(way, dim=1)
        return self.layers[2](hidden)


@pytest.mark.parametrize(
    ("model", "loss"),
    [(Classifier, weighted), (Adversarial, F.cross_entropy)],
    ids=["weight", "perturbation"],
)
def test_constants_that_are_meant(model: type[nn.Module], loss: Any) -> None:
    assert _report(model(), loss, torch.arange(6) % 4).ok
