"""Gradients that grow from layer to layer where outputs keep their size, as in sine networks, and nets beside them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Finding

POINTS = torch.rand(64, 2, generator=torch.Generator().manual_seed(0)) * 2 - 1


class Sine(nn.Module):
    """A layer of a SIREN; the initialisation of hidden ones divides by the frequency where it is right."""

    def __init__(self, width: int, out: int, frequency: float, *, first: bool, right: bool) -> None:
        super().__init__()
        bound = 1 / width if first else (6 / width) ** 0.5 / (frequency if right else 1.0)
        self.weight = nn.Parameter(torch.empty(out, width).uniform_(-bound, bound))
        self.frequency = frequency

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(self.frequency * F.linear(x, self.weight))


def siren(right: bool, frequency: float = 30.0) -> nn.Module:
    sines = [Sine(2 if i == 0 else 32, 32, frequency, first=i == 0, right=right) for i in range(4)]
    return nn.Sequential(*sines, nn.Linear(32, 3))


class Standardised(nn.Module):
    """Weights from N(0, 1), and what they give is standardised: by a norm, or by hand."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(2, 256), nn.Linear(256, 3)
        self.layers = nn.ModuleList(nn.Linear(256, 256, bias=False) for _ in range(4))
        self.kind = kind
        for layer in self.layers:
            nn.init.normal_(layer.weight)

    def standard(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "norm":
            return F.layer_norm(x, (256,))
        if self.kind == "std":
            return x / x.std(1, keepdim=True)
        return x / 16  # a fixed scale, as of an equalised learning rate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        for layer in self.layers:
            x = torch.relu(self.standard(layer(x)))
        return self.leave(x)


class Beside(nn.Module):
    """Layers of one shape that run side by side, each with a smaller share of the output."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 3) for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(0.05**i * layer(x).tanh() for i, layer in enumerate(self.layers))


def judged(model: nn.Module) -> Finding:
    contract = Contract(
        model=model, batch=((POINTS,), torch.sin(3 * POINTS @ torch.ones(2, 3))), loss=F.mse_loss
    )
    return contract.check(["signal-propagation"]).findings[0]


@pytest.mark.parametrize("frequency", [30.0, 60.0])
def test_hidden_sines_that_are_initialised_for_another_frequency(frequency: float) -> None:
    found = judged(siren(right=False, frequency=frequency))
    assert (found.status, found.code) == ("violated", "signal-explodes")
    assert found.culprits[0].name == "1.weight"
    assert "the gradient explodes over 4 layers, from 3 back to 0" in found.summary
    assert "initialise these weights with a smaller std" in found.fix


@pytest.mark.parametrize("frequency", [1.0, 30.0, 60.0])
def test_sines_that_are_initialised_for_their_frequency(frequency: float) -> None:
    assert judged(siren(right=True, frequency=frequency)).status == "passed"


@pytest.mark.parametrize("kind", ["norm", "std", "scale"])
def test_large_weights_whose_outputs_are_scaled(kind: str) -> None:
    assert judged(Standardised(kind)).status != "violated"


def test_layers_beside_each_other() -> None:
    assert judged(Beside()).code != "signal-explodes"


def test_plain_layers() -> None:
    layers = [part for i in range(5) for part in (nn.Linear(2 if i == 0 else 32, 32), nn.ReLU())]
    assert judged(nn.Sequential(*layers, nn.Linear(32, 3))).status == "passed"
