"""Where recorded gradients die is found for many parameters at once, as for each of them alone."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck.probes.gradient import paths as gradient_paths
from pytest_torchcheck.probes.gradient.zeros import find_zero_gradients


class Branches(nn.Module):
    """Two branches, one of which a rectifier kills, and a scale behind both."""

    def __init__(self, depth=3):
        super().__init__()
        self.dead = nn.ModuleList([nn.Linear(4, 4) for _ in range(depth)])
        self.live = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))
        nn.init.constant_(self.dead[-1].bias, -50.0)

    def forward(self, x):
        y = x
        for layer in self.dead:
            y = torch.relu(layer(y))
        return (y + self.live(x)) * self.scale


def names_of(model):
    return [name for name, _ in model.named_parameters()]


def run_of(model):
    torch.manual_seed(0)
    x, target = torch.rand(6, 4), torch.randn(6, 4)
    return lambda: F.mse_loss(model(x), target)


def test_many_parameters_are_told_as_each_alone():
    torch.manual_seed(0)
    model = Branches()
    together = find_zero_gradients(run_of(model), model, names_of(model))
    alone = {
        name: found
        for name in names_of(model)
        for found in find_zero_gradients(run_of(model), model, [name]).values()
    }
    assert together.keys() == alone.keys() == {n for n in names_of(model) if n.startswith("dead")}
    for name, found in together.items():
        assert (found.kind, found.location, found.fact) == (
            alone[name].kind,
            alone[name].location,
            alone[name].fact,
        )
    assert {found.kind for found in together.values()} == {"inactive"}


@pytest.mark.parametrize("depth", [10, 20])
def test_every_value_is_looked_at_once(depth, monkeypatch):
    looked = []
    joined = gradient_paths.Ahead._join
    monkeypatch.setattr(
        gradient_paths.Ahead,
        "_join",
        lambda ahead, value: looked.append(value) or joined(ahead, value),
    )
    torch.manual_seed(0)
    model = Branches(depth)
    find_zero_gradients(run_of(model), model, names_of(model))
    assert len(looked) == len(set(looked))
    assert len(looked) < 6 * depth + 20
